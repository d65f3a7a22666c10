"""The methods, one file each; importing this package registers them all, in this order."""

from importlib import import_module

from fedfomo.algorithms.registry import ALGORITHMS, describe, find_algorithm, make_algorithm, register

__all__ = ["ALGORITHMS", "describe", "find_algorithm", "make_algorithm", "register"]

for _module in (
    *(
        "local",
        "fedavg",
        "fedavg_finetuned",
        "fedfomo.core",
        "fedfomo.averages",
        "fedfomo.as_coded",
        "fedfomo.robust",
        "fedfomo.keep_training",
        "local_all",
        "oracle",
        "fedavg_shared",
    ),
    *("fedavg_tuned_on_validation", "fedavgm", "fedprox", "lg_fedavg", "fedrep", "ditto", "fedala", "cfl", "ifca"),
    *("mapper", "fl_hc", "fedamp", "pfedgraph", "dpfl", "per_fedavg", "pfedme", "apfl", "apfl_logits"),
    *("l2gd", "mocha", "mocha_linear", "mocha_repository", "private_mixture", "apple"),
):
    import_module(f"fedfomo.algorithms.{_module}")
