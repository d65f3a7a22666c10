"""Clients are stacked only if the examples of all of them, and not of one, allow it."""

import logging

import pytest
import torch
from torch import Tensor, nn

from fedfomo.core import vectorised
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd
from fedfomo.core.losses import OBJECTIVES
from fedfomo.core.model import Loss, Model
from fedfomo.core.rng import stream
from fedfomo.core.vectorised import Stack
from fedfomo.simulation.problem import FederatedProblem
from toy_problems import perceptron, points


def problem_of(model: Model, *sets: Examples) -> FederatedProblem:
    clients = [ClientData(part, part, part) for part in sets]
    return FederatedProblem(model, model.read(), clients, Sgd(), seed=0)


def stack_of(model: Model, *sets: Examples) -> Stack | None:
    return problem_of(model, *sets).stack_of(model)


def test_whole_targets_here_and_fractions_there_are_not_stacked() -> None:
    objective, inputs = OBJECTIVES["regression"], torch.randn(6, 3, generator=stream(0))
    model = Model(nn.Linear(3, 1), objective.loss, objective.metrics)
    whole, fractions = Examples(inputs, torch.arange(6)[:, None]), Examples(inputs[:5], torch.full((5, 1), 0.9))
    assert stack_of(model, whole, whole) is not None
    assert stack_of(model, fractions, fractions) is not None
    assert stack_of(model, whole, fractions) is None


class Words(nn.Module):
    """Takes sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(self.embedding(inputs).mean(1))


def test_sequences_of_different_lengths_are_not_stacked() -> None:
    model, labels = Model(Words()), torch.zeros(6, dtype=torch.int64)
    five, seven = (Examples(torch.zeros(6, length, dtype=torch.int64), labels) for length in (5, 7))
    assert stack_of(model, five, five) is not None
    assert stack_of(model, five, seven) is None


class TwoInputs(nn.Module):
    """Takes inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.linear(torch.cat([inputs["one"], inputs["other"]], 1))


def test_inputs_by_name_are_not_stacked() -> None:
    inputs = {name: torch.randn(6, 2, generator=stream(0)) for name in ("one", "other")}
    assert stack_of(Model(TwoInputs()), Examples(inputs, torch.zeros(6, dtype=torch.int64))) is None


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, nn.CrossEntropyLoss()])
def test_labels_that_the_loss_leaves_out_are_not_stacked_wherever_they_are(loss: Loss) -> None:
    model, inputs = Model(nn.Linear(3, 2), loss), torch.randn(5, 3, generator=stream(0))
    all_count, some_count = (Examples(inputs, torch.tensor([0, 1, 1, *rest])) for rest in ((0, 1), (-100, -100)))
    assert stack_of(model, all_count, all_count) is not None
    assert stack_of(model, all_count, some_count) is None
    other = Model(nn.Linear(3, 2), nn.CrossEntropyLoss(ignore_index=1))
    assert stack_of(other, all_count) is None


def test_a_site_without_examples_may_have_them_in_any_form() -> None:
    model, nothing = Model(perceptron()), Examples(torch.empty(0), torch.empty(0))
    stack, some = stack_of(model, points(6, 0, stream(0)), nothing), points(6, 0, stream(0))
    assert stack is not None
    empty, full = stack.score([(model.read(), nothing), (model.read(), some)])
    assert empty.num_examples == 0
    assert full.loss == pytest.approx(model.loss(model.read(), some), rel=1e-5)


def test_what_fails_together_is_computed_one_by_one_and_said(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return {"of one": self.linear}[f"of {'one' if inputs.dim() == 2 and len(inputs) == 1 else 'many'}"](inputs)

    with caplog.at_level(logging.INFO):
        assert stack_of(Model(Fails()), points(6, 0, stream(0))) is None
    assert "computed one by one: together they fail (KeyError: 'of many')" in caplog.text


def test_large_examples_are_scored_a_few_at_a_time_even_behind_a_site_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model(perceptron())
    some, nothing = points(6, 0, stream(0)), points(0, 0, stream(0))
    stack = stack_of(model, some)
    assert stack is not None
    sizes: list[int] = []
    laid = vectorised._side_by_side

    def noting(sets: list[Examples], device: torch.device) -> tuple[Tensor, Tensor]:
        inputs, labels = laid(sets, device)
        sizes.append(inputs.numel())
        return inputs, labels

    monkeypatch.setattr(vectorised, "_side_by_side", noting)
    monkeypatch.setattr(vectorised, "SCORED_AT_ONCE", some.inputs.numel())
    stack.score([(model.read(), nothing), (model.read(), some), (model.read(), points(6, 1, stream(1)))])
    assert max(sizes) == some.inputs.numel()
