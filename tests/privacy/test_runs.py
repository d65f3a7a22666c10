"""Whole runs: one bill per client from the first round to the last, whatever happens in between."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfomo.algorithms import make_algorithm
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.errors import InputError
from fedfomo.privacy.accountant import Query, epsilon_of
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.engine import PrivacyEngine
from fedfomo.privacy.private_data import PrivateExamples, SystemNoise
from fedfomo.runs.site_data import client_data
from fedfomo.simulation.callbacks import Callback
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult, simulate
from toy_problems import KeepLines, digest, points_problem, with_batch_norm

FEDFOMO = [sys.executable, "-m", "fedfomo"]
RUN = ["run", "--clients", "6", "--distributions", "2", "--rounds", "8", "--workers", "2"]
PRIVATE = ["--privacy.noise", "1", "--privacy.delta", "1e-3", "--privacy.validation-noise", "6"]


def private(problem: FederatedProblem | None = None, **privacy: Any) -> FederatedProblem:
    return replace(problem or points_problem(), privacy=Privacy(**{"noise": 1.0, "delta": 1e-3, **privacy}))


def run_private(problem: FederatedProblem, rounds: int = 3, method: str = "fedfomo", **plan: Any) -> RunResult:
    return simulate(problem, make_algorithm(method), SimulationConfig(rounds=rounds, **plan))


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_the_bill_is_epochs_times_rounds_times_steps() -> None:
    spent = run_private(private(), rounds=3, method="fedavg").spent
    assert spent is not None
    # 12 examples, batches of 5: three steps an epoch, one epoch a round, three rounds.
    assert spent[0].training == epsilon_of({Query("training", 1.0, 5 / 12): 9}, "training", 1e-3)
    assert spent[0].validation == 0.0


def test_whoever_takes_part_less_pays_less() -> None:
    result = run_private(private(), rounds=4, method="fedavg", participation=0.5)
    assert result.spent is not None
    per_round = [epsilon_of({Query("training", 1.0, 5 / 12): 3 * times}, "training", 1e-3) for times in range(5)]
    assert {spent.training for spent in result.spent.values()} <= set(per_round)
    assert len({spent.training for spent in result.spent.values()}) > 1


def test_without_a_gate_validation_records_have_no_guarantee() -> None:
    exact, gated = run_private(private()).spent, run_private(private(validation_noise=4.0)).spent
    assert exact is not None
    assert gated is not None
    assert all(math.isinf(spent.validation) and math.isinf(spent.headline) for spent in exact.values())
    # Round 0: own model and reference; then five others come along, and once more after the last round.
    looks = {Query("validation", 4.0, 1.0): 2 + 7 + 7 + 7}
    assert gated[0].validation == epsilon_of(looks, "validation", 1e-3)
    assert gated[0].headline == max(gated[0].training, gated[0].validation)


def test_privacy_that_is_off_changes_no_bit() -> None:
    plain = points_problem()
    assert digest(run_private(replace(plain, privacy=Privacy(delta=0.5))).models) == digest(run_private(plain).models)
    assert run_private(plain).spent is None


def test_clipping_without_noise_is_a_setting_of_its_own_and_guarantees_nothing() -> None:
    spent = run_private(private(noise=0.0)).spent
    assert spent is not None
    assert all(math.isinf(one.training) for one in spent.values())


def test_research_runs_repeat_and_deployment_runs_do_not() -> None:
    assert digest(run_private(private()).models) == digest(run_private(private(), workers=2).models)
    first, second = (run_private(private(mode="deployment")) for _ in range(2))
    assert digest(first.models) != digest(second.models)
    assert first.spent == second.spent
    guard = PrivacyEngine(Privacy(noise=1.0, mode="deployment"), 1.0)
    assert isinstance(guard.tracker(0, 0, 0, {}).noise, SystemNoise)
    assert guard.seed(7) != guard.seed(7)
    assert PrivacyEngine(Privacy(noise=1.0), 1.0).seed(7) == 7


def test_a_private_run_killed_twice_ends_like_one_left_alone(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    subprocess.run([*FEDFOMO, *RUN, *PRIVATE, "--out", str(alone)], check=True, capture_output=True)
    command = [*FEDFOMO, *RUN, *PRIVATE, "--out", str(killed)]
    for rounds_seen in (2, 5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = killed / "rounds.jsonl"
        while (not lines.exists() or lines.read_bytes().count(b"\n") < rounds_seen) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        command = [*FEDFOMO, "resume", str(killed)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "research mode" in finished
    assert (killed / "rounds.jsonl").read_bytes() == (alone / "rounds.jsonl").read_bytes()
    models = [sorted(folder.glob("models/*")) for folder in (alone, killed)]
    assert [path.read_bytes() for path in models[0]] == [path.read_bytes() for path in models[1]]
    epsilons = [entry["epsilon"]["0"]["training"] for entry in log(killed)]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] < epsilons[-1]


class _Interrupt(Callback):
    """Ends a run in the middle of a round."""

    def __init__(self, during: int) -> None:
        self._during = during

    def client_done(self, round: int, client: int) -> None:
        if round == self._during:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("mode", "times"), [("research", 3), ("deployment", 4)])
def test_in_deployment_a_round_that_is_played_again_is_paid_again(tmp_path: Path, mode: str, times: int) -> None:
    problem = private(mode=mode)
    for during in (1, None):
        home = RunDirectory(tmp_path, "same", print)
        try:
            callback = None if during is None else _Interrupt(during)
            result = simulate(problem, make_algorithm("fedavg"), SimulationConfig(rounds=3), home, callback)
        except KeyboardInterrupt:
            assert during == 1
        finally:
            home.close()
    assert result.spent is not None
    assert result.spent[0].training == epsilon_of({Query("training", 1.0, 5 / 12): 3 * times}, "training", 1e-3)


def test_a_budget_that_runs_out_ends_a_clients_uploads_and_the_run_goes_on(tmp_path: Path) -> None:
    full = epsilon_of({Query("training", 1.0, 5 / 12): 6}, "training", 1e-3)  # two rounds' worth
    home = RunDirectory(tmp_path, "same", print)
    problem = private(points_problem(sizes={0: (24, 4)}), budget=full)
    result = simulate(problem, make_algorithm("fedfomo"), SimulationConfig(rounds=4), home)
    home.close()
    assert result.spent is not None
    assert all(spent.training <= full for spent in result.spent.values())
    uploads = [set(entry["uploads"]) for entry in log(tmp_path)]
    assert [len(each) for each in uploads] == [6, 6, 1, 1]  # client 0 has more records, each looked at less often
    assert [len(entry["budget_spent"]) for entry in log(tmp_path)] == [0, 0, 5, 5]
    assert len(result.models) == 6
    assert len(result.after_update) == 6


def test_who_can_pay_for_nothing_keeps_the_initial_model_whatever_was_computed_before() -> None:
    problem = private(budget=1e-3)
    run_private(replace(problem, privacy=Privacy()), method="local")  # leaves its last client's model in the network
    models = run_private(problem, method="fedavg-finetuned").models  # trains before it predicts
    assert all(torch.equal(theta, problem.initial) for theta in models.values())


def test_who_cannot_pay_for_the_last_update_takes_nothing_in_it() -> None:
    # Enough for round 0, with own model and reference, and for round 1, with five others: two federated updates.
    budget = epsilon_of({Query("validation", 4.0, 1.0): 2 + 7}, "validation", 1e-3)
    lines: list[dict[str, Any]] = []
    problem = private(noise=50.0, validation_noise=4.0, budget=budget)
    result = simulate(problem, make_algorithm("fedfomo"), SimulationConfig(rounds=3), callback=KeepLines(lines))
    assert [len(line["budget_spent"]) for line in lines] == [0, 0, 6]
    assert result.taken is not None
    uploaded = [
        sum(sum(line["uploads"].get(str(n), {}).get("findings.shares", [])) for line in lines) for n in range(6)
    ]
    assert result.taken.dense().sum(dim=1).tolist() == pytest.approx(uploaded)
    assert sum(uploaded) > 0


def test_a_target_is_met_by_the_client_with_the_fewest_records() -> None:
    result = run_private(private(points_problem(sizes={2: (8, 4)}), noise=None, epsilon=3.0), method="fedavg")
    assert result.spent is not None
    assert 2.9 < result.spent[2].training <= 3.0
    assert max(spent.training for spent in result.spent.values()) == result.spent[2].training


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"noise": -1.0}, "noise must be"),
        ({"noise": math.nan}, "noise must be"),
        ({"clip": 0.0}, "clip must be"),
        ({"clip": math.inf}, "clip must be"),
        ({"delta": 0.0}, "delta must be"),
        ({"validation_clip": -1.0}, "validation_clip must be"),
        ({"validation_noise": 0.0}, "validation_noise must be above 0"),
        ({"noise": 1.0, "epsilon": 3.0}, "not both"),
        ({"noise": 0.0, "budget": 3.0}, "cannot be kept without noise"),
        ({"noise": None, "budget": 3.0}, "training is not private yet"),
        ({"noise": None, "validation_noise": 3.0}, "training is not private yet"),
    ],
)
def test_settings_that_would_protect_nobody_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Privacy(**{"noise": 1.0, **settings})


def test_a_delta_that_could_give_one_record_away_is_refused() -> None:
    with pytest.raises(InputError, match="not below 1/12"):
        run_private(private(delta=1 / 12))
    with pytest.raises(InputError, match="validation records"):
        run_private(private(points_problem(sizes={0: (12, 40)}), delta=1 / 40, validation_noise=1.0))


def test_networks_that_mix_examples_are_refused_before_anything_is_computed() -> None:
    with pytest.raises(InputError, match="GroupNorm"):
        run_private(private(points_problem(build=with_batch_norm)))


def test_an_error_of_the_engine_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the engine cannot be attached")

    monkeypatch.setattr("fedfomo.privacy.dp_sgd._by", broken)
    with pytest.raises(InputError, match="cannot be attached"):
        run_private(private())
    monkeypatch.undo()
    monkeypatch.setattr("fedfomo.privacy.dp_sgd.clipped_sum", broken)
    with pytest.raises(RuntimeError, match="cannot be attached"):
        run_private(private())


def test_without_entropy_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(size: int) -> bytes:
        raise NotImplementedError("no source of randomness")

    monkeypatch.setattr(os, "urandom", none_left)
    with pytest.raises(NotImplementedError):
        run_private(private(mode="deployment"))


def test_a_trainer_that_adds_no_noise_is_refused() -> None:
    class Own:
        pass

    with pytest.raises(
        InputError, match="clips and noises the gradient of every record, which it cannot reach in a Own"
    ):
        run_private(replace(private(), trainer=Own()))  # type: ignore[arg-type]


def test_records_are_out_of_reach_of_whoever_does_not_pay() -> None:
    problem = private()
    guard = problem.privacy_engine(1)
    assert guard is not None
    data = problem.clients[0]
    records = PrivateExamples(data.train, ("training",), guard.tracker(0, 0, 0, {}))
    for look in (lambda: records.inputs, lambda: records.labels, lambda: records.take(torch.tensor([0])).inputs):
        with pytest.raises(InputError, match="past the noise"):
            look()
    with pytest.raises(InputError, match="past the noise"):
        _ = next(records.batches(2)).labels
    both = records.joined(data.validation, PrivateExamples(data.validation, ("validation",), records.tracker))
    assert both.records == ("training", "validation")
    assert len(both) == 20


def test_the_split_does_not_depend_on_what_is_in_the_records() -> None:
    def split(first: int) -> list[list[int]]:
        inputs = torch.arange(first, first + 30).float().view(30, 1)
        data = client_data("Leeds", ((inputs, torch.zeros(30)), (inputs, torch.zeros(30))), 0.5, 0)
        return [(part.inputs.flatten() - first).long().tolist() for part in (data.validation, data.test)]

    assert split(0) == split(1000)


def test_shared_examples_and_privacy_exclude_each_other() -> None:
    command = [*FEDFOMO, "run", "--rounds", "1", "--share-fraction", "0.1", *PRIVATE]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 2
    assert "clients cannot share examples" in finished.stderr
