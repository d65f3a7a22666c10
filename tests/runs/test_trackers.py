"""Trackers receive what the log holds; without being asked for, none is imported."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli_calls import SMALL, call, refused
from fedfomo.algorithms import make_algorithm
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.runs import callbacks
from fedfomo.runs.callbacks import figures_of, open_tracker
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import points_problem

LINE: dict[str, Any] = {
    "round": 0,
    "cohort": [0, 1, 2],
    "after_update": {str(k): {"loss": float(k), "metric": k / 2, "num_examples": 4} for k in range(3)},
    "after_training": {"0": {"loss": None, "metric": None, "num_examples": 0}},
    "traffic": {"models_down": 3.0, "models_up": 3.0, "bytes_down": 30, "bytes_up": 20},
    "refused": {"2": "not finite"},
}


def test_a_line_is_digested_and_never_to_the_mean_alone() -> None:
    figures = figures_of(LINE)
    assert figures["after_update/accuracy/mean"] == 0.5
    assert figures["after_update/accuracy/worst"] == 0.0
    assert figures["after_update/accuracy/p10"] == pytest.approx(0.1)
    assert figures["after_update/loss/worst"] == 2.0
    assert figures["after_update/loss/p90"] == pytest.approx(1.8)
    assert figures["clients/refused"] == 1.0
    assert not any(name.startswith("after_training") for name in figures)


def test_no_tracker_is_imported_unasked() -> None:
    asked = "[name for name in ('tensorboard', 'mlflow', 'wandb') if name in sys.modules]"
    code = f"import sys; import fedfomo.cli.run, fedfomo.runs.run; print({asked})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_unknown_trackers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'wandb'" in refused(capsys, "run", "--track", "wandbb")


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_holds_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    call("run", "--out", str(tmp_path / "run"), *SMALL, "--track", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("after_update/accuracy/mean")] == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_holds_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    tracker = open_tracker("mlflow", tmp_path / "run", {"rounds": 2})
    tracker.log(1, figures_of(LINE))
    tracker.close()
    [kept] = mlflow.search_runs(experiment_names=["fedfomo"], output_format="list")
    assert kept.data.metrics["clients/took_part"] == 3.0


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tmp_path / "run").mkdir()
    tracker = open_tracker("wandb", tmp_path / "run", {"rounds": 2})
    tracker.log(1, figures_of(LINE))
    tracker.close()
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))


class Broken:
    """A tracker whose service is away after the first round."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self.rounds.append(round)
        if round == 2:
            raise ConnectionError("the service is away")

    def close(self) -> None:
        raise AssertionError("nobody closes what has failed")


def test_a_tracker_that_fails_ends_no_run_and_is_gets_no_more_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = Broken()
    monkeypatch.setattr(callbacks, "open_tracker", lambda *_: tracker)
    call("run", "--out", str(tmp_path / "run"), *SMALL, "--track", "wandb")
    assert tracker.rounds == [1, 2]
    assert "wandb failed and gets no more figures" in capsys.readouterr().out
    assert (tmp_path / "run" / "result.json").exists()


def test_a_tracker_that_cannot_be_opened_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: object) -> None:
        raise ConnectionError("the service is away")

    monkeypatch.setattr(callbacks, "open_tracker", away)
    call("run", "--out", str(tmp_path / "run"), *SMALL, "--track", "wandb")
    assert "wandb failed and gets no more figures" in capsys.readouterr().out
    assert (tmp_path / "run" / "result.json").exists()


def test_a_round_is_safe_before_anybody_hears_of_it(tmp_path: Path) -> None:
    class Away(Callback):
        def round_done(self, finished: FinishedRound) -> None:
            raise ConnectionError("away")

    home = RunDirectory(tmp_path, "same", print)
    with pytest.raises(ConnectionError):
        simulate(points_problem(), make_algorithm("fedavg"), SimulationConfig(rounds=2), home, callback=Away())
    home.close()
    home = RunDirectory(tmp_path, "same", print)
    kept = home.checkpoints.newest("same")
    home.close()
    assert kept is not None
    assert kept.rounds_done == 1
