"""What earlier versions wrote is still read."""

from typing import Any

import pytest

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.algorithms.ditto import Ditto
from fedfomo.algorithms.fedfomo import FedFomo, FedFomoAsCoded, FedFomoKeepTraining, RobustFedFomo
from fedfomo.algorithms.former_names import FORMER_OPTIONS
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.options import option_types
from fedfomo.errors import InputError


@pytest.mark.parametrize("method", FORMER_OPTIONS)
def test_former_options_lead_to_present_ones(method: str) -> None:
    for former, present in FORMER_OPTIONS[method].items():
        assert present in option_types(ALGORITHMS[method])
        assert former not in option_types(ALGORITHMS[method])
        assert vars(make_algorithm(method, {former: "0.25"}))[present] == 0.25


@pytest.mark.parametrize(
    ("options", "made"),
    [
        (
            {"norm": "l1", "epsilon": "0.1"},
            FedFomoAsCoded(5, 0.1, norm="l1", affinity_update="raw", num_averages=0),
        ),
        ({"num_averages": 3}, FedFomoAsCoded(5, norm="l2", affinity_update="raw", num_averages=3)),
        ({"weight_limit": 2.0, "num_downloads": 3}, RobustFedFomo(num_downloads=3, weight_limit=2.0)),
        ({"keep_training": True}, FedFomoKeepTraining()),
        ({"keep_training": "false", "epsilon": 0.5}, FedFomo(epsilon=0.5)),
    ],
)
def test_former_options_of_fedfomo_lead_to_the_methods_that_have_them(
    options: dict[str, Any], made: AnyAlgorithm
) -> None:
    assert make_algorithm("fedfomo", options) == made


def test_former_options_that_belong_to_two_methods_now_are_refused_in_words() -> None:
    with pytest.raises(InputError, match="norm, check_mixture of 'fedfomo' belong to fedfomo-as-coded and fedfomo-rob"):
        make_algorithm("fedfomo", {"norm": "l1", "check_mixture": True})


def test_lambda_may_be_written_as_in_the_paper() -> None:
    assert make_algorithm("ditto", {"lambda": 0.5}) == Ditto(lambda_=0.5)
