"""Personalised federated learning: every client federates with the clients that help it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedfomo.privacy.config import Privacy
    from fedfomo.site_folders import read_sites
    from fedfomo.sites import Federated, federate
    from fedfomo.training import Sgd

__all__ = ["Federated", "Privacy", "Sgd", "federate", "read_sites"]

_HOMES = {
    "federate": "fedfomo.sites",
    "Federated": "fedfomo.sites",
    "Privacy": "fedfomo.privacy.config",
    "read_sites": "fedfomo.site_folders",
    "Sgd": "fedfomo.training",
}


def __getattr__(name: str) -> Any:
    """Import on first use: torch takes seconds, and the command line's help should not."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedfomo' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
