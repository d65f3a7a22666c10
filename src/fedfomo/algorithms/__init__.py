"""The methods, one file each; importing this package registers them all, in this order."""

from importlib import import_module

from fedfomo.algorithms.registry import ALGORITHMS, describe, find_algorithm, make_algorithm, register

__all__ = ["ALGORITHMS", "FAMILIES", "describe", "find_algorithm", "make_algorithm", "register"]

FAMILIES: dict[str, tuple[str, ...]] = {
    "Without a federation": ("local",),
    "One model for all": (
        "fedavg",
        "fedavg_finetuned",
        "fedavg_shared",
        "fedavgm",
        "fedprox",
    ),
    "FedFomo": (
        "fedfomo.core",
        "fedfomo.plus",
        "fedfomo.averages",
        "fedfomo.as_coded",
        "fedfomo.robust",
        "fedfomo.keep_training",
    ),
    "Part of the model is shared": ("lg_fedavg", "fedrep", "fedper", "fedbn", "fedala"),
    "A model of one's own beside a shared one": (
        "ditto",
        "pfedme",
        "apfl",
        "apfl_logits",
        "mapper",
        "l2gd",
        "private_mixture",
    ),
    "Meta-learning and multi-task learning": ("per_fedavg", "mocha", "mocha_linear", "mocha_repository"),
    "Clusters of clients": ("oracle", "cfl", "ifca", "fl_hc"),
    "Who collaborates with whom": ("fedamp", "pfedgraph", "apple", "dpfl"),
}
"""The modules of the methods, by what these have in common."""

for _module in (module for modules in FAMILIES.values() for module in modules):
    import_module(f"fedfomo.algorithms.{_module}")
