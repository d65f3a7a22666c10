"""Every algorithm in the registry obeys every law."""

from dataclasses import replace

import pytest
import torch

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.algorithms.fedfomo import RobustFedFomo
from fedfomo.core.data import ClientData, Examples
from fedfomo.simulation.simulate import simulate
from fedfomo.testing import LAWS, Law, points_problem
from fedfomo.testing.laws import TWO_ROUNDS
from fedfomo.testing.toy_federation import digest, with_data


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_law(name: str, law: Law) -> None:
    law(make_algorithm(name))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law_with_every_defence_on(law: Law) -> None:
    law(
        RobustFedFomo(
            check_mixture=True,
            one_slot_for_copies=True,
            weight_limit=10.0,
            new_head_epochs=2,
            flag_free_riders=True,
        )
    )


# local-all evaluates nothing, and trains on validation data.
EVALUATE_NOTHING = {name for name, method in ALGORITHMS.items() if method.evaluates_on == "nothing"}
READ_NO_VALIDATION = sorted({"local", *EVALUATE_NOTHING} - {"local-all"})


@pytest.mark.parametrize("name", READ_NO_VALIDATION)
def test_methods_without_a_choice_to_make_never_read_validation_data(name: str) -> None:
    problem = points_problem()

    def spoilt(client: int, data: ClientData) -> ClientData:
        inputs = torch.full_like(data.validation.inputs, torch.nan)
        return replace(data, validation=Examples(inputs, data.validation.labels))

    models = simulate(problem, make_algorithm(name), TWO_ROUNDS).models
    assert digest(simulate(with_data(problem, spoilt), make_algorithm(name), TWO_ROUNDS).models) == digest(models)
