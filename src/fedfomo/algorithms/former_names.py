"""Names that methods and options had in earlier versions, so that what was written then can still be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedfomo.core.options import field_of
from fedfomo.errors import require

FORMER_OPTIONS: dict[str, dict[str, str]] = {
    "fedprox": {"pull": "mu"},
    "ditto": {"pull": "lambda_"},
    "fedala": {"rate": "eta"},
    "pfedgraph": {"strength": "lambda_"},
    "pfedme": {"strength": "lambda_", "outer_rate": "eta", "server_rate": "beta"},
    "per-fedavg": {"inner_rate": "alpha"},
    "apfl": {"share": "alpha"},
    "apfl-logits": {"share": "alpha"},
    "mocha": {"strength": "lambda_"},
    "mocha-linear": {"strength": "lambda_"},
    "apple": {"strength": "mu"},
}
"""By method, from the former to the present name of an option."""

_CODED = ("norm", "affinity_update", "availability", "num_averages")
_ROBUST = ("check_mixture", "one_slot_for_copies", "weight_limit", "new_head_epochs", "flag_free_riders")
MOVED_OPTIONS = (
    dict.fromkeys(_CODED, "fedfomo-as-coded")
    | dict.fromkeys(_ROBUST, "fedfomo-robust")
    | {"keep_training": "fedfomo-keep-training"}
)
"""Former options of `fedfomo`, and the methods that have them now."""
_CODED_BEFORE = {"norm": "l2", "affinity_update": "raw", "num_averages": 0, "num_downloads": 5}
"""What such an option was if it was not given."""


def current_names(method: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the present names of a method and of its options."""
    renamed = FORMER_OPTIONS.get(method, {})
    present = {renamed.get(option, field_of(option)): value for option, value in options.items()}
    moved = [option for option in present if option in MOVED_OPTIONS] if method == "fedfomo" else []
    if not moved:
        return method, present
    methods = sorted({MOVED_OPTIONS[option] for option in moved})
    require(len(methods) == 1, f"options {', '.join(moved)} of 'fedfomo' belong to {' and '.join(methods)}: choose one")
    if methods == ["fedfomo-keep-training"]:
        keeps = str(present.pop("keep_training")).lower() == "true"
        return ("fedfomo-keep-training" if keeps else "fedfomo"), present
    return methods[0], (_CODED_BEFORE if methods == ["fedfomo-as-coded"] else {}) | present
