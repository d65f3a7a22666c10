"""Personalised federated learning: every client federates with the clients that help it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfomo.algorithms.fedavg import FedAvg
    from fedfomo.algorithms.fedfomo import FedFomo
    from fedfomo.algorithms.registry import register
    from fedfomo.core.algorithm import Algorithm, Personalised, Trained
    from fedfomo.core.client import Client, FederationInfo
    from fedfomo.core.local_training import ProximalTerm, Sgd
    from fedfomo.core.messages import Coordinates, Ids, Numbers, Offsets, Parameters, Table
    from fedfomo.core.own_loop import OwnLoop, TrainContext
    from fedfomo.core.trainer import Trainer
    from fedfomo.privacy.config import Privacy
    from fedfomo.runs.federated_statistics import Standardise
    from fedfomo.sites.federate import federate
    from fedfomo.sites.load_sites import Sites, load_site, load_sites, load_tables, site_statistics
    from fedfomo.sites.partition import load_leaf, partition
    from fedfomo.sites.result import FederationResult
    from fedfomo.sites.table_encoding import TableEncoding
    from fedfomo.sites.table_statistics import TableStatistics

__all__ = [
    "Algorithm",
    "Client",
    "Coordinates",
    "FedAvg",
    "FedFomo",
    "FederationInfo",
    "FederationResult",
    "Ids",
    "Numbers",
    "Offsets",
    "OwnLoop",
    "Parameters",
    "Personalised",
    "Privacy",
    "ProximalTerm",
    "Sgd",
    "Sites",
    "Standardise",
    "Table",
    "TableEncoding",
    "TableStatistics",
    "TrainContext",
    "Trained",
    "Trainer",
    "federate",
    "load_leaf",
    "load_site",
    "load_sites",
    "load_tables",
    "partition",
    "register",
    "site_statistics",
]

_MODULES = {
    **dict.fromkeys(("Algorithm", "Personalised", "Trained"), "fedfomo.core.algorithm"),
    **dict.fromkeys(("Client", "FederationInfo"), "fedfomo.core.client"),
    **dict.fromkeys(("Coordinates", "Ids", "Numbers", "Offsets", "Parameters", "Table"), "fedfomo.core.messages"),
    "FedAvg": "fedfomo.algorithms.fedavg",
    "FedFomo": "fedfomo.algorithms.fedfomo",
    "ProximalTerm": "fedfomo.core.local_training",
    "register": "fedfomo.algorithms.registry",
    "federate": "fedfomo.sites.federate",
    "FederationResult": "fedfomo.sites.result",
    "Privacy": "fedfomo.privacy.config",
    **dict.fromkeys(("Sites", "load_site", "load_sites", "load_tables", "site_statistics"), "fedfomo.sites.load_sites"),
    **dict.fromkeys(("load_leaf", "partition"), "fedfomo.sites.partition"),
    "TableEncoding": "fedfomo.sites.table_encoding",
    "TableStatistics": "fedfomo.sites.table_statistics",
    "Standardise": "fedfomo.runs.federated_statistics",
    "Sgd": "fedfomo.core.local_training",
    "Trainer": "fedfomo.core.trainer",
    **dict.fromkeys(("OwnLoop", "TrainContext"), "fedfomo.core.own_loop"),
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds, and the command line's help should not."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fedfomo' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
