"""Private judgement."""

import math

import pytest
import torch
from torch import Tensor

from fedfomo.core.data import Examples
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.privacy.accountant import Query, Records
from fedfomo.privacy.private_data import BudgetTracker, PrivateExamples, SeededNoise
from fedfomo.privacy.private_evaluation import PrivateEvaluator, mean_clipped_loss
from toy_problems import scalar_model, targets


class Ones:
    def draw(self, size: int) -> Tensor:
        return torch.ones(size, dtype=torch.float64)


def private(
    examples: Examples, records: tuple[Records, ...] = ("validation",), noise: object = None
) -> PrivateExamples:
    return PrivateExamples(examples, records, BudgetTracker(noise or Ones(), {}, lambda ledger: True))  # type: ignore[arg-type]


def test_losses_are_held_between_0_and_the_clip() -> None:
    assert float(mean_clipped_loss(torch.tensor([1.0, 9.0, -2.0, torch.nan]), 4.0)) == (1 + 4 + 0 + 4) / 4
    assert float(mean_clipped_loss(torch.tensor([torch.inf, -torch.inf]), 4.0)) == 2.0


def test_noise_is_measured_in_what_one_record_can_change() -> None:
    # At x = 0 and 2, targets 1 and 3 cost 1 and 9, 1 and 1; clipped at 4: means 2.5 and 1. Noise 3 · 4 / 2 = 6.
    evaluator, records = PrivateEvaluator(3.0, 4.0), private(targets(1.0, 3.0))
    models = [torch.tensor([0.0]), torch.tensor([2.0])]
    assert evaluator.losses(scalar_model(), models, records).tolist() == [8.5, 7.0]
    assert records.tracker.ledger == {Query("validation", 3.0, 1.0): 2}  # one for every model


def test_one_record_moves_a_loss_by_no_more_than_its_share() -> None:
    evaluator = PrivateEvaluator(1e-9, 4.0)  # next to no noise
    ordinary = evaluator.losses(scalar_model(), [torch.zeros(1)], private(targets(*[0.0] * 9, 1.0)))
    extreme = evaluator.losses(scalar_model(), [torch.zeros(1)], private(targets(*[0.0] * 9, 1e30)))
    assert float(extreme - ordinary) <= 4.0 / 10


def test_every_model_has_noise_of_its_own() -> None:
    noise = SeededNoise(stream(0, "noise"))
    losses = PrivateEvaluator(1.0, 5.0).losses(
        scalar_model(), [torch.zeros(1)] * 2000, private(targets(0.0), noise=noise)
    )
    assert float(losses.std()) == pytest.approx(5.0, rel=0.06)


def test_without_noise_losses_are_exact_and_nothing_is_guaranteed() -> None:
    records = private(targets(1.0, 3.0))
    assert PrivateEvaluator(None, 4.0).losses(scalar_model(), [torch.zeros(1)], records).tolist() == [5.0]
    assert records.tracker.ledger == {Query("validation", 0.0, 1.0): 1}


def test_training_records_are_never_judged_without_noise() -> None:
    with pytest.raises(InputError, match="validation-noise"):
        PrivateEvaluator(None, 4.0).losses(scalar_model(), [torch.zeros(1)], private(targets(1.0), ("training",)))


def test_nothing_to_judge_by_costs_nothing() -> None:
    records = private(targets())
    losses = PrivateEvaluator(1.0, 4.0).losses(scalar_model(), [torch.zeros(1)], records)
    assert math.isnan(float(losses))
    assert records.tracker.ledger == {}


@pytest.mark.parametrize("number", [0, 2])
def test_a_random_sample_is_not_evaluated_however_many_came(number: int) -> None:
    records = PrivateExamples(
        targets(*[1.0] * number),
        ("training",),
        BudgetTracker(Ones(), {}, lambda ledger: True),
        chance=0.5,
        expected=2.0,
        sample=b"a draw",
    )
    with pytest.raises(InputError, match="evaluates a random sample"):
        PrivateEvaluator(1.0, 4.0).losses(scalar_model(), [torch.zeros(1)], records)
    assert records.tracker.ledger == {}


def test_examples_that_are_nobodys_are_refused() -> None:
    with pytest.raises(InputError, match="no budget to charge"):
        PrivateEvaluator(1.0, 4.0).losses(scalar_model(), [torch.zeros(1)], targets(1.0))
