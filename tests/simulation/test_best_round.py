"""Early stopping and the best round go by validation data, and the result is that round's to the bit."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedfomo
from cli_calls import SMALL, call, refused
from fedfomo.core.metrics import Score
from fedfomo.engine.best_round import BestRound
from fedfomo.errors import InputError
from fedfomo.runs.records import read_record, read_rounds
from fedfomo.simulation.callbacks import Callback, FinishedRound


def scores(**metrics: float) -> dict[int, Score]:
    return {int(client[1:]): Score(0.0, metric, 10) for client, metric in metrics.items()}


def test_a_round_is_best_by_the_mean_of_what_clients_had_last() -> None:
    best = BestRound(patience=2)
    assert best.see(0, scores(c0=0.5, c1=0.5))
    assert not best.see(1, scores(c0=0.5))  # client 1 counts with what it had: no gain
    assert best.see(2, scores(c1=0.7, c2=math.nan))  # who has no validation data does not count
    assert (best.round, best.value) == (2, pytest.approx(0.6))
    assert not best.has_stalled
    best.see(3, scores(c0=0.4))
    best.see(4, scores(c0=0.5))
    assert best.has_stalled


def part(seed: int, number: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(number, 10, generator=rng)
    return inputs, (inputs[:, 0] + 1.5 * torch.randn(number, generator=rng) > 0).long()


SITES: dict[str, Any] = {f"site {n}": (part(n, 12), part(n + 10, 60)) for n in range(3)}


def overfitting(out: Path, **further: Any) -> fedfomo.FederationResult:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))

    usual = {"rounds": 30, "trainer": fedfomo.Sgd(learning_rate=0.3, batch_size=4), "workers": 0, "baselines": ()}
    return fedfomo.federate(network, SITES, out=out, **{**usual, "stop_after": 3, **further})


def means(folder: Path, part: str) -> list[float]:
    return [sum(score["metric"] for score in line[part].values()) / 3 for line in read_rounds(folder)]


def test_a_run_stops_and_its_models_are_those_of_the_best_round(tmp_path: Path) -> None:
    result = overfitting(tmp_path / "runs")
    folder = result.folder
    on_validation = means(folder, "validation")
    best = on_validation.index(max(on_validation))
    assert len(on_validation) == best + 4 < 30
    record = read_record(folder)
    assert record.best_round == best + 1
    line = read_rounds(folder)[best]["after_update"]
    assert {str(client): score.as_dict() for client, score in record.after_update.items()} == line
    assert result.scores["site 1"] == record.after_update[1]
    assert f"models are those of round {best + 1}" in str(result)
    assert "without a gain on validation data" in result.report(tmp_path / "report.html").read_text()
    with pytest.raises(InputError, match="was begun with stop_after = 3, and now it is 4"):
        overfitting(tmp_path / "runs", stop_after=4)


@pytest.mark.parametrize("end_after", [1, 3, 5])
def test_a_run_that_was_stopped_by_hand_ends_alike(tmp_path: Path, end_after: int) -> None:
    class Stop(Callback):
        rounds = 0

        def round_done(self, finished: FinishedRound) -> None:
            self.rounds += 1
            if self.rounds == end_after:
                raise KeyboardInterrupt

    alone = overfitting(tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        overfitting(tmp_path / "stopped", callback=Stop())
    again = overfitting(tmp_path / "stopped")
    name = alone.folder.name
    logs = [(tmp_path / place / name / "rounds.jsonl").read_bytes() for place in ("alone", "stopped")]
    assert logs[0] == logs[1]
    assert again.scores == alone.scores
    for site in alone.sites:
        for ours, theirs in zip(again.models[site].parameters(), alone.models[site].parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_commands_stop_too_and_refuse_it_with_privacy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "--method", "local", *SMALL, "--rounds", "12", "--learning-rate", "0.5", "--stop-after", "1")
    call(*words, "--out", str(tmp_path / "run"))
    assert len(read_rounds(tmp_path / "run")) < 12
    assert call("report", str(tmp_path / "run")) is None
    assert "not finished" not in capsys.readouterr().out
    assert "--stop-after goes by exact scores" in refused(capsys, *words, "--privacy.noise", "1.0")
