"""Early stopping and the best round go by validation data, and the result is that round's to the bit."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedfomo
from cli_calls import SMALL, call, refused
from fedfomo.algorithms import make_algorithm
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd
from fedfomo.core.metrics import Score
from fedfomo.core.model import Model
from fedfomo.engine.best_round import BestRound
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.errors import InputError
from fedfomo.runs.records import read_record, read_rounds
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult, simulate


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


def test_a_run_goes_on_as_long_as_nothing_was_measured() -> None:
    best = BestRound(patience=2)
    for number in range(5):
        best.see(number, scores(c0=math.nan))
        assert not best.has_stalled


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


def few_clients(seed: int) -> FederatedProblem:
    """Four clients with next to no data, whose best round is soon over or the last."""

    def examples(number: int, rng: torch.Generator) -> Examples:
        inputs = torch.randn(number, 4, generator=rng)
        return Examples(inputs, (inputs[:, 0] > 0).long())

    clients: list[ClientData] = []
    for client in range(4):
        rng = torch.Generator().manual_seed(client)
        clients.append(ClientData(examples(12 - client, rng), examples(8, rng), examples(8, rng)))
    torch.manual_seed(seed)
    model = Model(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
    return FederatedProblem(model, model.read(), clients, Sgd(learning_rate=0.5, batch_size=4, epochs=1), seed)


@pytest.mark.parametrize(("seed", "stop_after", "rounds", "best"), [(0, 5, 3, 3), (13, 5, 6, 6), (2, 1, 8, 4)])
def test_a_run_that_was_stopped_at_its_very_end_ends_alike(
    tmp_path: Path, seed: int, stop_after: int, rounds: int, best: int
) -> None:
    def refuse(warning: str) -> None:
        raise AssertionError(warning)  # of a checkpoint that cannot be used any more

    results: list[RunResult] = []
    for _ in range(3):
        directory = RunDirectory(tmp_path, "the same", refuse)
        config = SimulationConfig(rounds, stop_after=stop_after)
        results.append(simulate(few_clients(seed), make_algorithm("fedfomo", {}), config, directory))
        directory.close()
    assert results[0].best_round == best
    for again in results[1:]:
        assert (again.best_round, again.after_update) == (best, results[0].after_update)
        assert all(torch.equal(again.models[client], results[0].models[client]) for client in range(4))


def test_without_validation_data_there_is_no_best_round() -> None:
    problem = few_clients(0)
    clients = [
        replace(data, validation=data.validation.take(torch.tensor([], dtype=torch.int64))) for data in problem.clients
    ]
    config = SimulationConfig(8, stop_after=2)
    with pytest.raises(InputError, match="no client has any: give validation data, or leave out stop_after"):
        simulate(replace(problem, clients=clients), make_algorithm("fedavg", {}), config)


def test_scores_after_training_are_those_of_the_last_round_however_early_it_comes() -> None:
    def run(evaluate_every: int) -> RunResult:
        config = SimulationConfig(30, evaluate_every=evaluate_every, stop_after=1)
        return simulate(few_clients(0), make_algorithm("fedavg", {}), config)

    rare, often = run(30), run(1)
    assert len(often.after_training) == 4
    assert rare.after_training == often.after_training


def test_commands_stop_too_and_refuse_it_with_privacy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "--method", "local", *SMALL, "--rounds", "12", "--learning-rate", "0.5", "--stop-after", "1")
    call(*words, "--out", str(tmp_path / "run"))
    assert len(read_rounds(tmp_path / "run")) < 12
    assert call("report", str(tmp_path / "run")) is None
    assert "not finished" not in capsys.readouterr().out
    assert "--stop-after goes by exact scores" in refused(capsys, *words, "--privacy.noise", "1.0")
