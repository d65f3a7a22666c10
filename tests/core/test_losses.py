"""Losses and metrics by name, worked by hand."""

import pytest
import torch
from torch import nn

import fedfomo
from fedfomo.core.losses import OBJECTIVES, labels_right, minus_absolute_error, objective_of, squared_error
from fedfomo.core.model import Loss
from fedfomo.errors import InputError
from fedfomo.sites.checks import check_sites


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


X = torch.linspace(-1, 1, 12).unsqueeze(1)


def minus_gap(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -(outputs.flatten() - labels.flatten()).abs()


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.l1_loss, lambda outputs, labels: (outputs - labels) ** 2])
@pytest.mark.parametrize("labels", [X, X[:, 0]])
def test_numbers_have_no_accuracy(loss: Loss, labels: torch.Tensor) -> None:
    sites = {"leeds": ((X, labels), (X, labels))}
    words = 'labels of type float32 have no accuracy: give metric= beside the loss, or loss="regression"'
    with pytest.raises(InputError, match=f"site 'leeds', training data: {words}"):
        fedfomo.federate(lambda: nn.Linear(1, 1), sites, loss=loss, workers=0)
    assert words in check_sites(sites, lambda: nn.Linear(1, 1), loss).faults[0]


def test_classes_have_an_accuracy_whoever_wrote_the_loss() -> None:
    chosen = objective_of(nn.CrossEntropyLoss(), None)
    assert chosen.name == "accuracy"
    assert chosen.metrics.per_example(torch.eye(2), torch.tensor([0, 0])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        nn.functional.smooth_l1_loss,
        lambda outputs, labels: (outputs - labels).abs().mean(),
        lambda outputs, labels: ((outputs - labels) ** 2).sum() / (outputs - labels).numel(),
    ],
)
def test_a_loss_that_would_compare_each_output_with_each_label_is_refused(loss: Loss) -> None:
    sites = {"leeds": ((X, X[:, 0]), (X, X[:, 0]))}
    with pytest.raises(InputError, match=r"outputs have shape \(2, 1\) and labels \(2,\), .* one shape, or loss=\"reg"):
        fedfomo.federate(lambda: nn.Linear(1, 1), sites, loss=loss, metric=minus_gap, workers=0)


@pytest.mark.parametrize("labels", [X[:, 0], X])
def test_it_is_refused_also_where_a_model_says_the_same_of_all_at_first(labels: torch.Tensor) -> None:
    def at_zero() -> nn.Module:
        linear = nn.Linear(1, 1)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        return linear if labels.dim() == 1 else nn.Sequential(linear, nn.Flatten(0))

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((outputs - labels) ** 2).mean()

    repeated = torch.cat((labels[:1], labels[:1], labels[1:]))  # the first two are the same
    inputs = torch.cat((X[:1], X))
    sites = {"leeds": ((inputs, repeated), (inputs, repeated))}
    assert "compares more of them than belong together" in check_sites(sites, at_zero, loss, minus_gap).faults[0]


@pytest.mark.parametrize(
    "loss",
    [
        squared_error,
        lambda outputs, labels: nn.functional.mse_loss(outputs, labels.unsqueeze(1)),
        lambda outputs, labels: nn.functional.mse_loss(outputs.squeeze(1), labels),
        lambda outputs, labels: nn.functional.mse_loss(outputs.squeeze(), labels),
        lambda outputs, labels: ((outputs[:, 0] - labels) ** 2).sum() / len(labels),
        # Of a weighted mean, the parts do not add up to the whole.
        lambda outputs, labels: ((outputs[:, 0] - labels) ** 2 * labels.abs()).sum() / labels.abs().sum(),
    ],
)
def test_a_loss_that_sees_to_shapes_itself_is_taken(loss: Loss) -> None:
    sites = {"leeds": ((X, X[:, 0] + 2), (X, X[:, 0] + 2))}
    assert not check_sites(sites, lambda: nn.Linear(1, 1), loss, minus_gap).faults


def test_a_loss_of_ones_own_may_take_more_outputs_than_labels() -> None:
    def likelihood(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.gaussian_nll_loss(outputs[:, :1], labels, outputs[:, 1:].exp())

    sites = {"leeds": ((X, X), (X, X))}
    metric = lambda outputs, labels: minus_gap(outputs[:, 0], labels)  # noqa: E731
    assert not check_sites(sites, lambda: nn.Linear(1, 2), likelihood, metric).faults
    found = check_sites(sites, lambda: nn.Linear(1, 2), nn.functional.mse_loss, metric)
    assert "outputs have shape (2, 2) and labels (2, 1)" in found.faults[0]


def test_sites_learn_numbers_and_several_labels() -> None:
    x = torch.linspace(-1, 1, 40).unsqueeze(1)
    lines = {
        name: ((x, slope * x[:, 0]), (x, slope * x[:, 0])) for name, slope in (("a", 1.0), ("b", 1.0), ("c", -2.0))
    }
    result = fedfomo.federate(lambda: nn.Linear(1, 1), lines, rounds=8, loss="regression", workers=0, baselines=())
    assert not result.report_data.is_share
    assert result.report_data.metric == "minus the absolute error"
    assert result.scores["c"].metric > -0.2

    both = torch.stack((x[:, 0] > 0, x[:, 0] < 0.5), dim=1).float()
    marks = dict.fromkeys(("a", "b"), ((x, both), (x, both)))
    quick = fedfomo.Sgd(learning_rate=1.0, batch_size=10)
    result = fedfomo.federate(
        lambda: nn.Linear(1, 2), marks, rounds=8, loss="multilabel", trainer=quick, workers=0, baselines=()
    )
    assert result.scores["a"].metric > 0.85
