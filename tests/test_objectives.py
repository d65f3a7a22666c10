"""Losses and metrics by name, worked by hand."""

import pytest
import torch
from torch import nn

import fedfomo
from fedfomo.errors import InputError
from fedfomo.objectives import OBJECTIVES, labels_right, minus_absolute_error, objective_of, squared_error


def test_regression_takes_columns_and_plain_numbers_alike() -> None:
    outputs, labels = torch.tensor([[1.0], [3.0]]), torch.tensor([2.0, 3.0])
    assert squared_error(outputs, labels).tolist() == [1.0, 0.0]
    assert minus_absolute_error(outputs, labels).tolist() == [-1.0, 0.0]
    with pytest.raises(InputError, match="do not fit"):
        squared_error(torch.zeros(2, 3), labels)


def test_several_labels_count_each() -> None:
    outputs = torch.tensor([[2.0, -1.0], [0.5, 0.5]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert labels_right(outputs, labels).tolist() == [1.0, 0.5]
    loss = OBJECTIVES["multilabel"].loss(torch.zeros(2, 2), labels)
    assert loss.tolist() == pytest.approx([0.6931, 0.6931], abs=1e-4)


def test_a_word_chooses_both_and_a_metric_of_ones_own_comes_first() -> None:
    def within_a_tenth(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs.squeeze(1) - labels).abs() < 0.1

    chosen = objective_of("regression", within_a_tenth)
    assert chosen.loss is squared_error
    assert chosen.name == "within a tenth"
    assert objective_of(nn.functional.mse_loss, lambda a, b: a).name == "metric"
    with pytest.raises(InputError, match="did you mean 'regression'"):
        objective_of("regresion", None)


def test_sites_learn_numbers_and_several_labels() -> None:
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    lines = {
        name: ((x, slope * x[:, 0]), (x, slope * x[:, 0])) for name, slope in (("a", 1.0), ("b", 1.0), ("c", -2.0))
    }
    result = fedfomo.federate(lambda: nn.Linear(1, 1), lines, rounds=8, loss="regression", workers=0, beside=())
    assert not result.facts.is_share
    assert result.facts.metric == "minus the absolute error"
    assert result.scores["c"].accuracy > -0.2

    both = torch.stack((x[:, 0] > 0, x[:, 0] < 0.5), dim=1).float()
    marks = dict.fromkeys(("a", "b"), ((x, both), (x, both)))
    quick = fedfomo.Sgd(learning_rate=1.0, batch_size=10)
    result = fedfomo.federate(
        lambda: nn.Linear(1, 2), marks, rounds=8, loss="multilabel", trainer=quick, workers=0, beside=()
    )
    assert result.scores["a"].accuracy > 0.85
