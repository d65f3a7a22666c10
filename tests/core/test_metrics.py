"""Metrics of all outputs at once, as medicine and ranking use them, worked by hand and federated."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedfomo
from fedfomo.core.data import Examples
from fedfomo.core.losses import objective_of
from fedfomo.core.messages import MessageError
from fedfomo.core.metrics import Metrics, Score
from fedfomo.core.model import Model, accuracy
from fedfomo.core.vectorised import Stack
from fedfomo.deployment.protocol import read_score
from fedfomo.errors import InputError


def auc(outputs: Tensor, labels: Tensor) -> float:
    """The share of pairs of a positive and a negative example that are in the right order."""
    risk = outputs[:, 1] - outputs[:, 0]
    gaps = risk[labels == 1][:, None] - risk[labels == 0]
    return float(((gaps > 0).double() + 0.5 * (gaps == 0)).mean())  # of no pairs: not a number


def sensitivity(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1)[labels == 1] == 1).double().mean())


def dice(outputs: Tensor, masks: Tensor) -> float:
    found, there = outputs.squeeze(1) > 0, masks > 0.5
    return 2 * float((found & there).sum()) / max(1, int(found.sum() + there.sum()))


def c_index(risks: Tensor, labels: Tensor) -> float:
    """Of (time, event) pairs: how often the one who dies first has the higher risk."""
    time, event = labels[:, 0], labels[:, 1] > 0
    is_pair = (time[:, None] < time) & event[:, None]
    right = (risks.view(-1, 1) > risks.view(-1)).double() + 0.5 * (risks.view(-1, 1) == risks.view(-1))
    return float(right[is_pair].mean())


class RunningF1:
    """What torchmetrics calls a metric: state, fed by batches."""

    def __init__(self) -> None:
        self.resets = 0
        self.reset()

    def reset(self) -> None:
        self.hits = self.found = self.there = 0
        self.resets += 1

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        found = outputs.argmax(1) == 1
        self.hits += int((found & (labels == 1)).sum())
        self.found += int(found.sum())
        self.there += int((labels == 1).sum())

    def compute(self) -> Tensor:
        return torch.tensor(2 * self.hits / max(1, self.found + self.there))


class Given(nn.Module):
    """Its outputs are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0 * self.idle


LOGITS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0]])
LABELS = torch.tensor([0, 0, 1, 1])


def test_metrics_of_sets_stand_beside_the_one_of_examples() -> None:
    f1 = RunningF1()
    model = Model(Given(), metric=objective_of("classification", None, {"auc": auc, "f1": f1}).metrics)
    score = model.score(model.read(), Examples(LOGITS, LABELS))
    # Risks -2, 1 of negatives and -1, 3 of positives: three of four pairs are in order. One of two positives is found,
    # by two guesses: F1 is 2 · 1 / (2 + 2).
    assert score.metrics == {"accuracy": 0.5, "auc": 0.75, "f1": 0.5}
    assert score.metric == 0.75
    assert model.score(model.read(), Examples(LOGITS, LABELS)) == score  # nothing is left of the first time
    assert f1.found == 0


def test_the_primary_metric_is_chosen_by_name() -> None:
    assert objective_of("classification", None, {"auc": auc}, "accuracy").name == "accuracy"
    with pytest.raises(InputError, match="there is no metric 'f1' to go by: choose accuracy or auc"):
        objective_of("classification", None, {"auc": auc}, "f1")


def test_sensitivity_dice_and_concordance_by_hand() -> None:
    assert sensitivity(LOGITS, LABELS) == 0.5
    masks = torch.tensor([[[1.0, 1.0], [0.0, 0.0]]])
    outputs = torch.tensor([[[[1.0, -1.0], [1.0, -1.0]]]])
    segmenting = Model(Given(), nn.functional.mse_loss, Metrics(None, "", {"dice": dice}))
    assert segmenting.score(torch.zeros(1), Examples(outputs[:, 0], masks)).metric == dice(outputs, masks) == 0.5
    survival = torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]])
    # Only who died can be first: pairs (1, 2) and (1, 3), of which risks 0.5 and 0.7 against 0.6 put one right.
    assert c_index(torch.tensor([0.6, 0.5, 0.7]), survival) == 0.5


def test_batches_make_one_set() -> None:
    rng = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(450, 2, generator=rng), torch.randint(2, (450,), generator=rng)
    model = Model(Given(), metric=Metrics(accuracy, "accuracy", {"auc": auc}))
    assert model.score(model.read(), Examples(logits, labels)).metric == pytest.approx(auc(logits, labels), abs=1e-12)


def test_stacked_models_are_measured_alike() -> None:
    rng = torch.Generator().manual_seed(0)
    model = Model(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), metric=Metrics(None, "", {"auc": auc}))
    sets = [Examples(torch.randn(n, 3, generator=rng), torch.arange(n) % 2) for n in (30, 12)]
    thetas = [model.read() + 0.1 * n for n in range(2)]
    stack = Stack.of(model, sets[0])
    assert stack is not None
    together = stack.score([*zip(thetas, sets, strict=True)])
    assert [score.metric for score in together] == [
        model.score(theta, own).metric for theta, own in zip(thetas, sets, strict=True)
    ]
    quick, _ = stack.score([*zip(thetas, sets, strict=True)], [False, False])
    assert (math.isnan(quick.metric), quick.metrics, quick.loss) == (True, {}, together[0].loss)


def test_what_fails_is_named() -> None:
    def broken(outputs: Tensor, labels: Tensor) -> Any:
        return outputs + labels[:, None]

    sites = {"leeds": ((LOGITS, LABELS), (LOGITS, LABELS))}
    for given, words in ((broken, "metric 'odd' fails on 2 examples"), ("f1", "metric 'odd' must be a function")):
        with pytest.raises(InputError, match=words):
            fedfomo.federate(lambda: nn.Linear(2, 2), sites, metrics={"odd": given}, workers=0)


def test_scores_of_older_files_are_read() -> None:
    assert Score.from_dict({"loss": 0.5, "accuracy": None, "num_examples": 0}).num_examples == 0
    score = Score(0.5, 0.75, 4, {"auc": 0.75})
    assert Score.from_dict(score.as_dict()) == score
    assert Score(0.5, 0.75, 4).as_dict() == {"loss": 0.5, "metric": 0.75, "num_examples": 4}


def test_a_federation_goes_by_its_metrics(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)

    def patients(number: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(number, 5, generator=rng)
        return inputs, (inputs[:, 0] + 0.5 * torch.randn(number, generator=rng) > 0.8).long()

    sites = {name: (patients(30), patients(60)) for name in ("leeds", "turin", "lyon")}
    arguments: dict[str, Any] = {"rounds": 2, "metrics": {"auc": auc, "sensitivity": sensitivity}, "workers": 0}
    result = fedfomo.federate(lambda: nn.Linear(5, 2), sites, out=tmp_path / "runs", **arguments)
    score = result.scores["leeds"]
    assert set(score.metrics) == {"accuracy", "auc", "sensitivity"}
    assert score.metric == score.metrics["auc"]
    assert result.report_data.metric == "auc"
    again = fedfomo.federate(lambda: nn.Linear(5, 2), sites, out=tmp_path / "runs", **arguments)
    assert again.scores == result.scores
    with pytest.raises(InputError, match="was begun with metrics = "):
        fedfomo.federate(
            lambda: nn.Linear(5, 2), sites, out=tmp_path / "runs", **(arguments | {"metrics": {"auc": auc}})
        )


def test_what_a_site_tells_of_several_metrics_is_read_and_bounded() -> None:
    told = Score(0.5, 0.75, 4, {"accuracy": 0.5, "auc": 0.75}).as_dict()
    assert read_score(told) == Score(0.5, 0.75, 4, {"accuracy": 0.5, "auc": 0.75})
    for odd in ({"auc": "high"}, {"auc": math.inf}, {"a" * 101: 0.5}, {str(n): 0.5 for n in range(21)}, [0.5]):
        with pytest.raises(MessageError):
            read_score({**told, "metrics": odd})
