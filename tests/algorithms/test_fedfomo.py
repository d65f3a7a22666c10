"""The equations of FedFomo, one by one, on numbers worked by hand."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fedfomo.algorithms.fedfomo import (
    Download,
    EvaluationWeights,
    FedFomo,
    FedFomoAsCoded,
    FedFomoKeepTraining,
    Memory,
)
from fedfomo.algorithms.fedfomo.core import TINY_DISTANCE, first_order_weights, mixing_weights, weigh
from fedfomo.core.model import Model
from fedfomo.core.vectors import distances_from, mix
from toy_problems import ids, numbers, point, scalar_client, scalar_model

NOTHING = Download(ids(), ())


@dataclass(frozen=True)
class Update:
    """What one federated update computes on the way."""

    weights: list[float]
    mixing: list[float]
    model: list[float]


def update(reference: Tensor, reference_loss: float, models: list[Tensor], losses: list[float]) -> Update:
    distances = distances_from(reference, models, len(reference), "l2")
    weights = first_order_weights(reference_loss, numbers(*losses), distances)
    mixing = mixing_weights(weights)
    return Update(weights.tolist(), mixing.tolist(), mix(reference, torch.stack(models), mixing).tolist())


def test_candidates_that_help_share_by_improvement_over_distance() -> None:
    # (1 − 0.5)/‖(3,4)‖ = 0.5/5 and (1 − 0.4)/‖(0,2)‖ = 0.6/2; shares 0.1/0.4 and 0.3/0.4.
    result = update(point(0, 0), 1.0, [point(3, 4), point(0, 2)], [0.5, 0.4])
    assert result.weights == pytest.approx([0.1, 0.3])
    assert result.mixing == pytest.approx([0.25, 0.75])
    assert result.model == pytest.approx([0.25 * 3, 0.25 * 4 + 0.75 * 2])


def test_a_harmful_candidate_keeps_its_negative_weight_but_gets_no_share() -> None:
    result = update(point(0, 0), 1.0, [point(3, 4), point(0, 2), point(1, 0)], [0.5, 0.4, 1.2])
    assert result.weights == pytest.approx([0.1, 0.3, (1.0 - 1.2) / 1])
    assert result.mixing == pytest.approx([0.25, 0.75, 0.0])
    assert result.model == pytest.approx([0.75, 2.5])


def test_without_a_positive_weight_the_model_is_the_reference() -> None:
    # The own model (1, 1) overfits: −0.1/√2. The other is no better: 0/2.
    result = update(point(0, 0), 1.0, [point(1, 1), point(2, 0)], [1.1, 1.0])
    assert result.weights == pytest.approx([-0.1 / 2**0.5, 0.0])
    assert result.mixing == [0.0, 0.0]
    assert result.model == [0.0, 0.0]


def test_the_only_candidate_that_helps_is_taken_whole() -> None:
    # 1/√2 and −1/√50.
    result = update(point(0, 0), 2.0, [point(1, 1), point(5, 5)], [1.0, 3.0])
    assert result.weights == pytest.approx([1 / 2**0.5, -1 / 50**0.5])
    assert result.mixing == [1.0, 0.0]
    assert result.model == [1.0, 1.0]


@pytest.mark.parametrize("loss_of_the_same_model", [0.7, 0.69])
def test_a_candidate_at_distance_zero_weighs_nothing_whatever_its_loss(loss_of_the_same_model: float) -> None:
    # 0/0 must not be NaN, and 0.01/0 not infinite; a small constant below the line would give 0.01/1e-5 = 1000.
    result = update(point(1, 2), 0.7, [point(1, 2), point(1, 3)], [loss_of_the_same_model, 0.6])
    assert result.weights == pytest.approx([0.0, 0.1])
    assert result.mixing == [0.0, 1.0]
    assert result.model == [1.0, 3.0]


def test_distances_count_as_zero_up_to_a_tiny_one() -> None:
    weights = first_order_weights(1.0, numbers(0.0, 0.0), numbers(TINY_DISTANCE, 2 * TINY_DISTANCE))
    assert weights.tolist() == pytest.approx([0.0, 1 / (2 * TINY_DISTANCE)])


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_candidate_whose_loss_is_no_number_weighs_nothing(loss: float) -> None:
    result = update(point(0, 0), 1.0, [point(1, 0), point(0, 2)], [loss, 0.5])
    assert result.weights == [0.0, 0.25]
    assert result.mixing == [0.0, 1.0]
    assert result.model == [0.0, 2.0]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_reference_loss_that_is_no_number_leaves_the_model_alone(loss: float) -> None:
    result = update(point(1, 2), loss, [point(1, 0), point(0, 2)], [0.1, 0.5])
    assert result.weights == [0.0, 0.0]
    assert result.model == [1.0, 2.0]


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("l2", (9 + 16 + 25 + 144) ** 0.5),  # over both tensors at once: not squared, not 5 + 13
        ("l1", 3.0 + 4 + 5 + 12),
    ],
)
def test_a_norm_is_taken_over_the_whole_vector(norm: str, expected: float) -> None:
    module = nn.ParameterDict({"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2))})
    size = Model(module).layout.num_trainable
    distances = distances_from(torch.zeros(4), [point(3, 4, 5, 12)], size, norm)
    assert distances.dtype == torch.float64
    assert distances.tolist() == pytest.approx([expected], abs=1e-12)
    assert first_order_weights(2.0, numbers(1.0), distances).tolist() == pytest.approx([1 / expected])


def test_the_norm_decides_whom_a_client_prefers() -> None:
    models = [point(1, 0, 0, 0), point(0.6, 0.6, 0.6, 0.6)]
    losses = numbers(0.5, 0.3)
    by_l2 = first_order_weights(1.0, losses, distances_from(torch.zeros(4), models, 4, "l2"))
    by_l1 = first_order_weights(1.0, losses, distances_from(torch.zeros(4), models, 4, "l1"))
    # 0.5/1 against 0.7/1.2 (a dense move), or against 0.7/2.4.
    assert by_l2.tolist() == pytest.approx([0.5, 7 / 12])
    assert mixing_weights(by_l2).tolist() == pytest.approx([6 / 13, 7 / 13])
    assert by_l1.tolist() == pytest.approx([0.5, 7 / 24])
    assert mixing_weights(by_l1).tolist() == pytest.approx([12 / 19, 7 / 19])


def test_distances_keep_what_float32_would_lose() -> None:
    # In float32 the sum of squares would stop at 1: 4,096 · 2⁻²⁴ = 2⁻¹² is lost term by term.
    model = torch.full((4097,), 2.0**-12)
    model[0] = 1.0
    assert distances_from(torch.zeros(4097), [model], 4097, "l2").item() == (1 + 2.0**-12) ** 0.5


def test_a_model_next_to_the_reference_takes_nearly_everything() -> None:
    # 1e-6/1e-8 = 100 against 0.1/1: without a constant below the line, the near one wins 1000 to 1.
    weights = first_order_weights(1.0, numbers(0.999999, 0.9), numbers(1e-8, 1.0))
    assert weights.tolist() == pytest.approx([100.0, 0.1], rel=1e-6)
    assert mixing_weights(weights).tolist() == pytest.approx([1000 / 1001, 1 / 1001], rel=1e-6)


def test_summed_losses_scale_the_weights_and_not_the_shares() -> None:
    distances = numbers(5.0, 2.0)
    of_means = first_order_weights(1.0, numbers(0.5, 0.4), distances)
    of_sums = first_order_weights(32.0, numbers(16.0, 12.8), distances)
    assert of_sums.tolist() == pytest.approx([3.2, 9.6])
    assert torch.allclose(of_sums, 32 * of_means)
    assert mixing_weights(of_sums).tolist() == pytest.approx([0.25, 0.75])
    assert mixing_weights(of_means).tolist() == pytest.approx([0.25, 0.75])


def test_the_slightest_improvement_moves_all_the_way() -> None:
    # There is no step size: 1e-9/100 is the only positive weight, so its share is 1.
    result = update(point(0, 0), 1.0, [point(100, 0)], [0.999999999])
    assert result.weights == pytest.approx([1e-11], rel=1e-6)
    assert result.mixing == [1.0]
    assert result.model == [100.0, 0.0]


def test_two_perfect_models_in_opposite_basins_cancel() -> None:
    # Loss (x² − 1)²: both candidates have loss 0 and weight 1/1, their middle is the reference, of loss 1.
    result = update(point(0), 1.0, [point(-1), point(1)], [0.0, 0.0])
    assert result.weights == [1.0, 1.0]
    assert result.mixing == [0.5, 0.5]
    assert result.model == [0.0]


def test_the_own_model_is_judged_against_the_reference_and_not_against_itself() -> None:
    # 0.5/2 and 0.6/4. With the own model as reference it would weigh 0, and the other would be taken whole.
    result = update(point(0), 1.0, [point(2), point(4)], [0.5, 0.4])
    assert result.weights == pytest.approx([0.25, 0.15])
    assert result.mixing == pytest.approx([0.625, 0.375])
    assert result.model == pytest.approx([0.625 * 2 + 0.375 * 4])


def test_huge_weights_do_not_overflow_their_sum() -> None:
    assert mixing_weights(numbers(1e308, 1e308, -1e308)).tolist() == [0.5, 0.5, 0.0]
    assert mixing_weights(numbers(float("inf"), 2.0, float("nan"))).tolist() == [0.0, 1.0, 0.0]


def test_no_candidates_give_no_shares() -> None:
    assert mixing_weights(numbers()).tolist() == []
    assert mix(point(1, 2), torch.empty(0, 2), numbers()).tolist() == [1.0, 2.0]


def test_mixing_refuses_another_number_of_weights_than_of_models() -> None:
    with pytest.raises(ValueError, match="shorter"):
        mix(point(0), [point(1), point(2)], numbers(1.0))


def test_mixing_skips_what_has_no_share_however_broken() -> None:
    assert mix(point(0), [point(float("inf")), point(4)], numbers(0.0, 0.5)).tolist() == [2.0]


class Normalised(nn.Module):
    """What BatchNorm keeps: a weight, a running mean and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("running_mean", torch.zeros(1))
        self.register_buffer("num_batches_tracked", torch.tensor(7))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight.expand(len(inputs))


def test_buffers_are_mixed_but_not_measured_and_counters_are_kept() -> None:
    model = scalar_model(Normalised())
    reference, candidates = point(0, 0), [point(2, 4), point(1, 8)]  # weight, running mean
    assert distances_from(reference, candidates, model.layout.num_trainable, "l2").tolist() == [2.0, 1.0]
    mixed = mix(reference, candidates, numbers(0.25, 0.75))
    state = model.state_dict(mixed)
    assert state["weight"].tolist() == [0.25 * 2 + 0.75 * 1]
    assert state["running_mean"].tolist() == [0.25 * 4 + 0.75 * 8]
    assert state["num_batches_tracked"].item() == 7
    assert state["num_batches_tracked"].dtype == torch.int64


def test_a_client_judges_by_the_weight_and_mixes_the_buffer_too() -> None:
    client = scalar_client(target=4.0)
    object.__setattr__(client, "model", scalar_model(Normalised()))
    memory = Memory(point(0, 0), point(2, 10), EvaluationWeights.none())
    download = Download(ids(1), (point(6, 30),))
    # Losses 16 at 0, 4 at 2, 4 at 6: weights 12/2 = 6 and 12/6 = 2, so shares 0.75 and 0.25.
    personal = FedFomo().personalise(client, download, memory)
    assert personal.model.tolist() == [0.75 * 2 + 0.25 * 6, 0.75 * 10 + 0.25 * 30]
    assert personal.memory.findings.increments.tolist() == [6.0, 2.0]


def test_who_overfits_stops_at_the_reference() -> None:
    memory = Memory(point(1), point(9), EvaluationWeights.none())
    personal = FedFomo().personalise(scalar_client(target=0.0), NOTHING, memory)
    assert personal.model.tolist() == [1.0]
    assert personal.memory.findings.increments.tolist() == [(1.0 - 81.0) / 8.0]
    assert personal.memory.own.tolist() == [9.0]


def test_who_overfits_and_keeps_training_goes_on_from_there() -> None:
    memory = Memory(point(1), point(9), EvaluationWeights.none())
    client, keeping = scalar_client(target=0.0), FedFomoKeepTraining()
    personal = keeping.personalise(client, Download(ids(1), (point(7),)), memory)
    assert personal.model.tolist() == [9.0]
    assert personal.memory.findings.shares.tolist() == [1.0, 0.0]
    assert personal.memory.findings.increments.tolist() == [(1.0 - 81.0) / 8.0, (1.0 - 49.0) / 6.0]  # as they are
    fresh = keeping.personalise(client, NOTHING, Memory(point(1), point(1), EvaluationWeights.none()))
    assert fresh.memory.findings.shares.tolist() == [0.0]  # nothing has been trained yet
    # Whoever is helped by anybody moves there as ever.
    helped = Download(ids(1), (point(0.5),))
    models = [algorithm.personalise(client, helped, memory).model.tolist() for algorithm in (keeping, FedFomo())]
    assert models == [[0.5], [0.5]]


def test_the_norm_option_reaches_the_weights() -> None:
    client = scalar_client(target=0.0)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.zeros(2))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.x[0].expand(len(inputs))

    object.__setattr__(client, "model", scalar_model(Two()))
    memory = Memory(point(3, 0), point(0, 4), EvaluationWeights.none())
    # The loss falls from 9 to 0 over a way of (−3, 4).
    for norm, distance in (("l2", 5.0), ("l1", 7.0)):
        personal = FedFomoAsCoded(norm=norm, affinity_update="raw", num_averages=0).personalise(client, NOTHING, memory)  # type: ignore[arg-type]
        assert personal.memory.findings.increments.tolist() == pytest.approx([9 / distance])


def test_who_cannot_judge_takes_all_whole_models_alike() -> None:
    reference, broken = torch.zeros(2), torch.tensor([torch.inf, 0.0])
    candidates = [reference, torch.tensor([2.0, 0.0]), torch.tensor([0.0, 4.0]), broken]
    distances = distances_from(reference, candidates, 2)
    weights, mixing = weigh(math.nan, numbers(*[math.nan] * 4), distances, has_validation=False)
    assert mix(reference, candidates, mixing).tolist() == [1.0, 2.0]
    assert mixing.tolist() == [0.0, 0.5, 0.5, 0.0]
    assert weights.tolist() == [0.0] * 4  # what it could not judge is no finding about anybody
