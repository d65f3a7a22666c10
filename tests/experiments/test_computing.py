"""Cells are computed once, go on after an interruption, and leave one small file each."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.iclr2021.__main__ import ReproduceConfig, reproduce
from experiments.iclr2021.paper_tables import FOMO_5, LATENT_2, LATENT_5, LOCAL
from experiments.iclr2021.results import Results
from experiments.iclr2021.run import can_go_on, compute_all
from experiments.iclr2021.settings import Cell, MethodConfig
from fedfomo.cli.main import main, run_and_exit
from fedfomo.runs.config import RunConfig
from fedfomo.runs.run import start_run
from fedfomo.runs.setup import prepare

ROOT = Path(__file__).parents[2]
CELL = Cell(LATENT_2, FOMO_5, "smoke")


def call(*arguments: str) -> int:
    """Call the experiments' command, or, with `run`, that of the library."""
    with pytest.raises(SystemExit) as ended:
        main(arguments) if arguments[0] == "run" else run_and_exit(reproduce, arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def folders(path: Path) -> list[str]:
    return ["--results", str(path / "results"), "--work", str(path / "work"), "--pages", str(path / "pages")]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compute a whole table, once for all tests that read it."""
    folder = tmp_path_factory.mktemp("computed")
    assert call("authors", "--scale", "smoke", "--workers", "0", *folders(folder)) == 0
    return folder


def test_a_table_is_computed_once_and_shown(computed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((computed / "results").rglob("*.json"))
    assert len(files) == 12
    assert not [path for path in (computed / "work").rglob("*") if path.is_file()]
    made = {path: path.stat().st_mtime_ns for path in files}

    assert call("authors", "--scale", "smoke", "--workers", "0", *folders(computed)) == 0
    assert {path: path.stat().st_mtime_ns for path in files} == made
    shown = capsys.readouterr().out
    assert "12 of 12 cells are done" in shown
    result = Results(computed / "results").get(CELL)
    assert result is not None
    assert f"| as the paper has it | **{result.mean():.2f}** |" in shown


def test_a_result_says_everything_about_its_run(computed: Path) -> None:
    path = computed / "results" / CELL.file
    content = json.loads(path.read_text())
    assert path.stat().st_size < 200_000
    assert content["cell"] == {
        "scale": "smoke",
        "case": "cifar10-latent-d2-k15",
        "variant": "fedfomo-5",
        "seed": 0,
    }
    assert content["config"]["rounds"] == 2
    assert content["config"]["options"] == ["num_downloads=5"]
    assert set(content["versions"]) >= {"fedfomo", "torch", "numpy"}
    for point in ("after_update", "after_training"):
        assert len(content[point]["accuracy"]) == 15
        assert len(content["curves"][point]) == 2
    assert content["affinity"]["after_rounds"] == [1, 2]
    assert len(content["affinity"]["matrices"][1]) == 15
    assert content["seconds"] > 0


def test_the_command_of_a_result_computes_the_same_run(computed: Path, tmp_path: Path) -> None:
    content = json.loads((computed / "results" / CELL.file).read_text())
    _, *words = content["command"].split()
    assert call(*words, "--workers", "0", "--out", str(tmp_path / "run")) == 0
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    for point in ("after_update", "after_training"):
        alone = [round(record[point][str(client)]["metric"], 6) for client in range(15)]
        assert alone == content[point]["accuracy"]


def test_a_killed_cell_goes_on_where_it_was_and_ends_the_same(computed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.iclr2021", "authors", "--scale", "smoke", "--workers", "0"]
    checkpoint = tmp_path / "work" / CELL.name / "checkpoints"
    with subprocess.Popen([*command, *folders(tmp_path)], stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        for _ in range(6000):
            if (checkpoint.exists() and any(checkpoint.glob("*.json"))) or process.poll() is not None:
                break
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert call(*command[3:], *folders(tmp_path)) == 0
    killed, whole = (Results(folder / "results").get(CELL) for folder in (tmp_path, computed))
    assert killed is not None
    assert whole is not None
    for part in ("after_update", "after_training", "curves", "affinity", "taken"):
        assert killed.content[part] == whole.content[part]


def test_what_was_begun_with_another_configuration_is_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "work" / CELL.name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('method = "local"\n')
    (folder / "environment.json").write_text("{}")
    assert call("authors", "--scale", "smoke", "--workers", "0", *folders(tmp_path)) == 0
    assert Results(tmp_path / "results").has(CELL)


def test_what_was_begun_with_other_code_is_begun_anew(tmp_path: Path) -> None:
    config = CELL.config(workers=0)
    start_run(config, tmp_path, prepare(config.setting, config.seed))
    assert can_go_on(tmp_path, config)
    said = json.loads((tmp_path / "environment.json").read_text())
    for name in ("source", "instructions"):
        (tmp_path / "environment.json").write_text(json.dumps({**said, name: "another"}))
        assert not can_go_on(tmp_path, config)


def test_a_cell_that_fails_is_named_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = Cell(LATENT_5, MethodConfig("broken", "", "fedfomo", ("num_downloads=0",)), "smoke")
    results, work, pages = (tmp_path / name for name in ("results", "work", "pages"))
    config = ReproduceConfig("authors", "smoke", results=results, work=work, pages=pages, workers=0)
    with pytest.raises(SystemExit) as ended:
        compute_all([broken, CELL], config, Results(results))
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert "'num_downloads' of method 'fedfomo' must be at least 1" in shown.out
    assert f"cells that failed, 1 in all: {broken.name}" in shown.err
    assert Results(results).has(CELL)


def test_without_data_nothing_is_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("table2", *folders(tmp_path)) == 2
    assert "--data FOLDER" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_unknown_names_are_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tabel2", *folders(tmp_path)) == 2
    assert "did you mean 'table2'?" in capsys.readouterr().err
    assert call("table2", "--seeds", "0") == 2


def test_the_list_says_what_is_done_and_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*folders(tmp_path)) == 0
    assert "The queue" in capsys.readouterr().out
    assert call("authors", "--scale", "smoke", "--list", *folders(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert shown.count("missing") == 12 + 1
    assert "0 done, 12 missing" in shown
    assert not (tmp_path / "work").exists()


def test_a_damaged_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results" / CELL.file
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert call("authors", "--scale", "smoke", "--list", *folders(tmp_path)) == 2
    assert "delete it, and it is computed again" in capsys.readouterr().err


def test_a_cell_is_the_run_that_its_command_says() -> None:
    lite = Cell(LATENT_5, LOCAL, "lite", seed=3).config()
    assert isinstance(lite, RunConfig)
    assert (lite.seed, lite.method, lite.options) == (3, "local", {})
    scenario = lite.setting.scenario
    assert (scenario.clients, scenario.distributions, scenario.data_fraction) == (15, 5, 0.2)
    assert (lite.setting.rounds, lite.setting.training.epochs, lite.setting.training.learning_rate) == (20, 5, 0.1)
