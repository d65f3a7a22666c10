"""Intervals of metrics that are of whole test sets."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import fedfomo
from fedfomo.core.metrics import Metrics
from fedfomo.report.intervals import Estimate, of_resampled_difference, of_resamples
from fedfomo.report.per_example import RESAMPLES, resampled
from fedfomo.report.select_run import find_run


def auc(outputs: Tensor, labels: Tensor) -> float:
    is_of_both = 0 < int(labels.sum()) < len(labels)
    return float(roc_auc_score(labels, outputs[:, 1] - outputs[:, 0])) if is_of_both else math.nan


def test_intervals_are_percentiles_of_what_is_defined() -> None:
    values = [k / 200 for k in range(201)]
    assert of_resamples(0.5, values) == Estimate(0.5, 0.025, 0.975)  # positions 5 and 195 of 0 to 200
    assert of_resamples(0.5, [*values, math.nan]) == Estimate(0.5, 0.025, 0.975)
    assert not of_resamples(0.5, [0.4, math.nan]).has_interval
    pairs = [(value + 0.3, value) for value in values]
    ours, theirs = Estimate(0.8, 0.7, 0.9), Estimate(0.5, 0.4, 0.6)
    gain = of_resampled_difference(ours, theirs, pairs)
    assert [gain.value, gain.low, gain.high] == pytest.approx([0.3, 0.3, 0.3])  # paired: they differ alike everywhere


def test_models_of_a_client_meet_the_same_resamples() -> None:
    rows, labels = torch.arange(40.0), torch.arange(40) % 2
    first = resampled(Metrics(None, "", {"mean": lambda outputs, _: float(outputs.mean())}), rows, labels, 0)
    again = resampled(Metrics(None, "", {"mean": lambda outputs, _: float(outputs.mean())}), rows + 1, labels, 0)
    assert len(first) == RESAMPLES
    assert [b - a for a, b in zip(first, again, strict=True)] == pytest.approx([1.0] * RESAMPLES)


def test_auc_leads_a_report_with_accuracy_beside_it(browser: Any, tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(0)

    def part(number: int, flipped: bool) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(number, 3, generator=rng)
        return inputs, ((inputs[:, 0] > 0) != flipped).long()

    sites = {"leeds": (part(30, False), part(80, False)), "turin": (part(30, True), part(80, False))}
    result = fedfomo.federate(lambda: nn.Linear(3, 2), sites, rounds=4, workers=0, metrics={"auc": auc}, out=tmp_path)
    turin = result.report_data.sentences[1]
    assert turin.startswith(f"turin: auc {result.scores['turin'].metric:.3g} instead of ")
    assert result.report_data.next_steps[1].text == "Join."
    own = result.report_data.methods[-1]
    gain = own.gains[1]
    assert gain is not None
    assert gain.value == pytest.approx(result.gains["turin"])
    assert 0 < gain.low < gain.value
    mean = sum(score.metrics["accuracy"] for score in result.scores.values()) / 2
    assert own.further["accuracy"] == pytest.approx(mean)
    assert own.by_class is not None
    assert [sum(numbers) for numbers in zip(*own.by_class[0], strict=True)][1] == 40
    crossed = result.report_data.cross
    assert crossed is not None
    assert crossed[1][1] == pytest.approx(result.scores["turin"].metric)
    assert (find_run(tmp_path) / "examination.json").exists()
    browser.get(result.report(tmp_path / "page.html").as_uri())
    assert browser.get_log("browser") == []
    assert "accuracy" in browser.find_element("css selector", "#verdict thead").text
    assert "sensitivity, FedFomo" in browser.find_element("css selector", "table#classes thead").text
