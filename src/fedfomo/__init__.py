"""Personalised federated learning: every client federates with the clients that help it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfomo.core.local_training import Sgd
    from fedfomo.privacy.config import Privacy
    from fedfomo.sites.federate import FederationResult, federate
    from fedfomo.sites.load_sites import load_sites

__all__ = ["FederationResult", "Privacy", "Sgd", "federate", "load_sites"]

_HOMES = {
    "federate": "fedfomo.sites.federate",
    "FederationResult": "fedfomo.sites.federate",
    "Privacy": "fedfomo.privacy.config",
    "load_sites": "fedfomo.sites.load_sites",
    "Sgd": "fedfomo.core.local_training",
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds, and the command line's help should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedfomo' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
