"""The command line: what it prints, what it refuses, and how."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.algorithms.fedfomo import FedFomo, FedFomoAsCoded, FedFomoKeepTraining, RobustFedFomo
from fedfomo.cli.main import COMMANDS, main
from fedfomo.cli.terminal import parse_comparison, parse_run
from fedfomo.runs.config import CompareConfig, RunConfig
from fedfomo.runs.config_io import read_toml, to_cli, write_toml
from fedfomo.runs.run import runs_of, with_methods_named

SMALL = ["--clients", "4", "--distributions", "2", "--rounds", "2", "--epochs", "1", "--workers", "0"]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Call a command that must end with one line and exit code 2, and return the line."""
    assert call(*arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    return lines[0]


def test_help_is_quick_and_names_every_command() -> None:
    times: list[float] = []
    for _ in range(3):
        started = time.perf_counter()
        shown = subprocess.run([sys.executable, "-m", "fedfomo", "--help"], capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - started)
    assert all(re.search(rf"^  {name} ", shown.stdout, re.MULTILINE) for name in COMMANDS)
    assert "report compare" in shown.stdout
    # What makes help slow is torch; a busy machine makes seconds unreliable, so ask for the cause as well.
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, fedfomo.cli.main; print('torch' in sys.modules, 'numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.split() == ["False", "False"]
    assert min(times) < 1.5


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(command, "--help") == 0
    assert f"fedfomo {command}" in capsys.readouterr().out


def test_a_reader_that_has_read_enough_gets_no_complaint() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedfomo", "run", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_the_help_of_capacity_says_what_its_default_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("deploy", "init", "--help") == 0
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "0: twice as many as at first" in shown


def test_a_run_leaves_a_folder_with_everything_about_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert call("run", "--out", str(folder), "--fedfomo.num-downloads", "2", *SMALL) == 0
    printed = capsys.readouterr().out
    assert "fedfomo" in printed
    assert "label distance (EMD)" in printed

    config = read_toml(folder / "config.toml", RunConfig)
    assert config.options == {"num_downloads": 2}
    assert config.setting.scenario.clients == 4
    environment = json.loads((folder / "environment.json").read_text())
    assert set(environment["versions"]) >= {"fedfomo", "torch", "numpy"}
    assert re.fullmatch("[0-9a-f]{64}", environment["data"]["sha256"])
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in rounds] == [0, 1]
    assert rounds[1]["uploads"]["0"]["findings.ids"][0] == 0  # the own model is always judged
    assert len(list((folder / "models").glob("client-*.safetensors"))) == 4
    assert len(list((folder / "affinity").iterdir())) == 2
    result = json.loads((folder / "result.json").read_text())
    assert len(result["after_update"]) == len(result["after_training"]) == 4
    assert result["traffic"]["models_up"] == 8.0


def test_a_comparison_shows_one_table_and_includes_local(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "comparison"
    arguments = ["--methods", "fedavg", "fedfomo", "--seeds", "0", "1", "--fedfomo.num-downloads", "1"]
    assert call("compare", "--out", str(folder), *arguments, *SMALL) == 0
    printed = capsys.readouterr().out
    for method in ("local", "fedavg", "fedfomo"):
        assert re.search(rf"^ *{method} .*±", printed, re.MULTILINE), method
        assert (folder / f"{method}-seed-1" / "result.json").exists()
    assert read_toml(folder / "config.toml", CompareConfig).seeds == (0, 1)

    # Resuming a finished comparison computes nothing and shows the same table.
    assert call("resume", str(folder)) == 0
    assert capsys.readouterr().out.count("±") == printed.count("±")


def test_a_run_is_resumed_from_anywhere_and_with_data_that_have_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    (here / "data").mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = {f"x_{part}": rng.integers(0, 256, (40, 8, 8), np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(40) % 4 for part in ("train", "test")}
    np.savez(here / "data" / "scans😀.npz", **images, **labels)  # a name that JSON would spell as two halves
    monkeypatch.chdir(here)
    flags = ["--scenario", "iid", "--clients", "2", "--rounds", "2", "--epochs", "1", "--workers", "0"]
    assert call("run", "--method", "fedavg", "--dataset", "scans😀", "--data", "data", "--out", "run", *flags) == 0
    monkeypatch.chdir(tmp_path)
    (here / "run" / "result.json").unlink()
    assert call("resume", "here/run") == 0
    (here / "run" / "result.json").unlink()
    (here / "data").rename(here / "elsewhere")
    assert "there is no folder" in refusal(capsys, "resume", "here/run")
    assert call("resume", "here/run", "--data", "here/elsewhere") == 0

    # Other data of the same name are another run's, whether or not this one is finished.
    (here / "others").mkdir()
    images["x_train"] = 255 - images["x_train"]
    np.savez(here / "others" / "scans😀.npz", **images, **labels)
    for _ in range(2):
        said = refusal(capsys, "resume", "here/run", "--data", "here/others")
        assert "here/run was begun with other clients than 'scans😀' gives now: the data, or" in said
        (here / "run" / "result.json").unlink(missing_ok=True)


def test_runs_that_a_resumed_comparison_begins_find_their_data_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    parts = {f"x_{part}": rng.integers(0, 256, (40, 8, 8), np.uint8) for part in ("train", "test")}
    parts |= {f"y_{part}": np.arange(40) % 4 for part in ("train", "test")}
    np.savez(tmp_path / "data" / "scans.npz", **parts)
    monkeypatch.chdir(tmp_path)
    flags = ["--scenario", "iid", "--clients", "2", "--rounds", "1", "--epochs", "1", "--workers", "0"]
    arguments = ["--methods", "local", "fedavg", "--seeds", "0", "--dataset", "scans", "--data", "data", *flags]
    assert call("compare", "--out", "comparison", *arguments) == 0
    shutil.rmtree("comparison/fedavg-seed-0")
    (tmp_path / "data").rename("moved")
    assert call("resume", "comparison", "--data", "moved") == 0
    assert read_toml(Path("comparison/fedavg-seed-0/config.toml"), RunConfig).setting.data == tmp_path / "moved"


def test_a_name_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refusal(capsys, "run", "--out", str(tmp_path / "caf\udce9"), *SMALL)
    assert "caf\\udce9' holds bytes that are no text" in said
    assert list(tmp_path.iterdir()) == []
    config = replace(RunConfig(), out=tmp_path / "a\x7fb")
    (tmp_path / "config.toml").write_text(write_toml(config))
    assert read_toml(tmp_path / "config.toml", RunConfig) == config


def test_flags_override_the_file_which_overrides_the_defaults(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text('method = "local"\nrounds = 7\nclients = 3\nlearning_rate = 1\n')
    folder = tmp_path / "run"
    assert call("run", str(settings), "--out", str(folder), "--rounds", "1", "--epochs", "1", "--workers", "0") == 0
    config = read_toml(folder / "config.toml", RunConfig)
    assert (config.method, config.setting.rounds, config.setting.scenario.clients) == ("local", 1, 3)
    assert config.setting.training.learning_rate == 1.0


def test_a_configuration_survives_being_written_and_read(tmp_path: Path) -> None:
    config = RunConfig(options={"a": 1, "quote": '"', "is_on": True}, out=Path("some where"))
    path = tmp_path / "config.toml"
    path.write_text(write_toml(config))
    assert read_toml(path, RunConfig) == config


def test_methods_and_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("methods") == 0
    assert "fedavg-finetuned" in capsys.readouterr().out
    assert call("methods", "fedfomo") == 0
    assert "num_downloads=5" in capsys.readouterr().out
    assert call("scenarios") == 0
    assert "dirichlet" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["ditto", "mocha", "mocha-linear", "pfedgraph", "pfedme"])
def test_lambda_is_written_as_in_the_papers(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "settings.toml"
    for option in ("lambda", "lambda_"):  # files of earlier versions have it so
        path.write_text(f'method = "{method}"\n[{method}]\n{option} = 0.25\n')
        config = parse_run([str(path)])
        assert config.options == {"lambda_": 0.25}
    assert parse_run(["--method", method, f"--{method}.lambda", "0.25"]) == config
    assert parse_run(shlex.split(" ".join(to_cli(config)))) == config
    assert "\nlambda = 0.25\n" in write_toml(config)
    path.write_text(write_toml(config))
    assert parse_run([str(path)]) == config
    assert parse_run([str(path), f"--{method}.lambda", "0.5"]).options == {"lambda_": 0.5}
    with pytest.raises(SystemExit):
        parse_run(["--method", method, "--help"])
    shown = capsys.readouterr().out
    assert f"--{method}.lambda FLOAT" in shown
    assert "lambda_" not in shown


@pytest.mark.parametrize(
    ("option", "made"),
    [
        ("norm = 'l1'", FedFomoAsCoded(num_downloads=3, norm="l1", affinity_update="raw", num_averages=0)),
        ("weight_limit = 2.0", RobustFedFomo(num_downloads=3, weight_limit=2.0)),
        ("keep_training = true", FedFomoKeepTraining(num_downloads=3)),
    ],
)
def test_flags_go_with_an_old_file_whose_options_belong_to_variants_of_fedfomo(
    option: str, made: FedFomo, tmp_path: Path
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f"[fedfomo]\n{option}\n")
    config = parse_run([str(path), "--fedfomo.num-downloads", "3"])
    assert make_algorithm(config.method, config.options) == made
    path.write_text(write_toml(config))
    again = parse_run([str(path), "--fedfomo.num-downloads", "3"])
    assert make_algorithm(again.method, again.options) == made


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rum"], "unknown command 'rum': did you mean 'run'?"),
        (["run", "--method", "fedfom"], "unknown method 'fedfom': did you mean 'fedfomo'?"),
        (["methods", "fedavgg"], "unknown method 'fedavgg': did you mean 'fedavg'?"),
        (["run", "--fedfomo.num-download", "3"], "did you mean --fedfomo.num-downloads?"),
        (["run", "--options", "epsilon=0.1"], "options of a method are flags of their own"),
        (["run", "--fedfomo.norm", "l1"], "it is --fedfomo-as-coded.norm, with --method fedfomo-as-coded"),
        (["run", "--method", "ditto", "--ditto.lambd", "1"], "did you mean --ditto.lambda?"),
        (["run", "--method", "ditto", "--ditto.lambda", "-1"], "'lambda' of method 'ditto' must be at least 0, not -1"),
        (["run", "--fedprox.stragglers", "0.1"], "or is not among the methods that run"),
        (["run", "--device", "meta"], "device 'meta' cannot be used here"),
        (
            ["run", "--clients", "1000001"],
            "clients is 1000001: give a whole number of at least 1 and at most 1,000,000",
        ),
        (["run", "--scenario", "pathological", "--classes-per-client", "11"], "classes_per_client is 11, of 10"),
        (["run", "--fedfomo.num-downloads"], "Missing value for argument '--fedfomo.num-downloads'"),
        (["run", "--fedfomo.num-downloads", "2.5"], "--fedfomo.num-downloads must be a whole number, not '2.5'"),
        (["run", "--fedfomo.num-downloads", "0"], "'num_downloads' of method 'fedfomo' must be at least 1, not 0"),
        (["run", "--fedfomo.epsilon", "1.5"], "'epsilon' of method 'fedfomo' must be between 0 and 1, not 1.5"),
        (["run", "--fedfomo.epsilon", "nan"], "'epsilon' of method 'fedfomo' must be a number, not 'nan'"),
        (["run", "--method", "fedfomo-as-coded", "--fedfomo-as-coded.norm", "l3"], "norm must be l2 or l1, not 'l3'"),
        (["run", "--rounds", "2.5"], "--rounds must be a whole number, not '2.5'"),
        (["run", "--learning-rate", "x"], "--learning-rate must be a number, not 'x'"),
        (["run", "--round", "3"], "unknown flag '--round': did you mean --rounds?"),
        (["run", "--far-fetched", "3"], "unknown flag '--far-fetched': fedfomo run --help lists the flags"),
        (["run", "--stack"], "unknown flag '--stack': it is now --vectorise"),
        (["run", "3.toml", "4"], "there is no configuration file 3.toml"),
        (["run", "--epochs", "0"], "epochs must be a whole number of at least 1, not 0"),
        (["run", "--learning-rate", "nan"], "learning_rate must be a number of at least 0, not nan"),
        (["run", "--rounds", "0"], "rounds must be at least 1, not 0"),
        (["run", "--participation", "0"], "participation must be above 0"),
        (["run", "--participation", "nan"], "participation must be above 0"),
        (["run", "--client-dropout", "1"], "client_dropout and late_fraction must be at least 0 and together below 1"),
        (["run", "--client-dropout", "nan"], "client_dropout and late_fraction must be at least 0"),
        (["run", "--client-dropout", "0.6", "--late-fraction", "0.6"], "together below 1, not (0.6, 0.6)"),
        (["run", "--late-fraction", "-0.1"], "client_dropout and late_fraction must be at least 0"),
        (["run", "--clients", "0"], "clients is 0"),
        (["run", "--alpha", "nan"], "alpha is nan"),
        (["run", "--scenario", "latend"], "unknown scenario 'latend': did you mean 'latent'?"),
        (["run", "--network", "mpl"], "unknown network 'mpl': did you mean 'mlp'?"),
        (["run", "--dataset", "cifar10"], "where is dataset 'cifar10'?"),
        (["run", "missing.toml"], "there is no configuration file missing.toml"),
        (["run", "/"], "/ is a folder, not a configuration file"),
        (["compare", "--seeds", "1", "1"], "a seed is given twice"),
        (["compare", "--methods", "fedfomoo"], "did you mean 'fedfomo'?"),
        (["compare", "--methods", "fedavg", "--fedprox.stragglers", "0"], "or is not among the methods that run"),
        (["compare", "--dataset", "cifar10"], "where is dataset 'cifar10'?"),
        (["compare", "--methods", "fedavg-shared", "--privacy.noise", "1"], "fedavg-shared cannot run here: it reads"),
        (["run", "--privacy.noise", "1", "--share-fraction", "0.1"], "with privacy, clients cannot share examples"),
        (["run", "--executor", "ray", "--device", "cuda"], "a Ray cluster computes on cpu, not cuda"),
        (["run", "--out", "x" * 300], "File name too long"),
        (["run", "--out", "/proc/run"], "cannot make the folder /proc/run, where no folder can be: give another"),
        (["scenarios", "show", "--json", "/proc/x/y.json"], "cannot make the folder /proc/x, where no folder can be"),
        (["run", "--data-fraction", "1e-9"], "data_fraction is 1e-09"),
        (["run", "--clients", "5000"], "clients is 5,000, of 1,438 training examples: give fewer clients"),
        (["run", "--momentum", "1e9"], "momentum must be below 1, not 1000000000.0"),
        (["compare", "--methods", "all", "bogus"], "all stands for every method that can run: leave out the others"),
        (
            ["run", "--out", "/dev/null/run"],
            "cannot make the folder /dev/null/run, since /dev/null is no folder: give another",
        ),
        (["report", ".", "--out", "."], ". is a folder: give a file"),
        (["report", ".", "--out", "/dev/null/x.html"], "/dev/null is a file"),
        (["report", "compare", ".", "--out", "."], ". is a folder: give a file"),
        (["resume", "nowhere"], "nowhere is not the folder of a run"),
    ],
)
def test_bad_input_gets_one_clear_line_and_writes_nothing(
    arguments: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in refusal(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("learning_rat = 0.1", "unknown key 'learning_rat' in settings.toml: did you mean 'learning_rate'?"),
        ("data = 3", "'data' in settings.toml must be a text in quotes, not 3"),
        ('rounds = "many"', "'rounds' in settings.toml must be a whole number, not 'many'"),
        ("rounds = 2.5", "must be a whole number"),
        ("method = 3", "must be a text in quotes"),
        ("rounds = true", "must be a whole number"),
        ("rounds = ", "is not valid TOML"),
        ("rounds = " + "[" * 10_000, "is not valid TOML"),
        ("rounds = " + "9" * 5_000, "is not valid TOML"),
        ('out = "a\\u0000b"', "'out' in settings.toml holds a zero byte"),
        ("options = 5", "'options' in settings.toml must be a list"),
        ('options = ["epsilon=0.1", "epsilon=0.2"]', "option 'epsilon' is given twice"),
        ('options = ["epsilon"]', "not of the form name=value"),
        ("[fedfomo]\nnum_download = 3", "unknown option 'num_download' of method 'fedfomo': did you mean"),
        (
            "[fedprox]\nstragglers = 0.5",
            "[fedprox] in settings.toml is no table of settings, nor of the method fedfomo",
        ),
        ("format = 3", "settings.toml has format = 3; this version of fedfomo reads formats 1 to 2"),
        ('track = "wandb"', "'track' in settings.toml must be a list of which each is a text in quotes, not 'wandb'"),
        ("setting = 3", "unknown key 'setting' in settings.toml: known: "),
    ],
)
def test_a_bad_configuration_file_is_refused_by_key(
    content: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.toml").write_text(content)
    assert line in refusal(capsys, "run", "settings.toml")


@pytest.mark.parametrize("below", ["", "/run"])
def test_a_link_to_nowhere_is_no_place_for_a_run(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    assert f"since {link} is no folder: give another" in refusal(capsys, "run", "--out", f"{link}{below}", *SMALL)
    assert "is a link to what does not exist" in refusal(capsys, "report", str(tmp_path), "--out", str(link))


def test_what_a_scenario_ignores_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--method", "local", "--alpha", "0.3", "--out", str(tmp_path / "run"), *SMALL) == 0
    said = capsys.readouterr().out
    assert "note: --alpha has no effect in the scenario latent" in said
    assert "--distributions has no effect" not in said


def test_old_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('method = "fedfomo"\noptions = ["num_downloads=2", "norm=l1"]\ndropout = 0.2\nstack = false\n')
    config = read_toml(path, RunConfig)
    assert config.options == {"num_downloads": 2, "norm": "l1"}
    assert (config.setting.client_dropout, config.setting.vectorise) == (0.2, False)
    assert "format = 2\n" in write_toml(config)
    assert '[fedfomo]\nnum_downloads = 2\nnorm = "l1"\n' in write_toml(config)
    path.write_text('methods = ["fedavg"]\noptions = ["local.keep_best=true"]\nlateness = 0.1\n')
    comparison = read_toml(path, CompareConfig)
    assert comparison.options == {"local": {"keep_best": True}}
    assert comparison.setting.late_fraction == 0.1
    path.write_text(write_toml(comparison))
    assert read_toml(path, CompareConfig) == comparison


def test_options_of_methods_are_flags_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", "--methods", "fedfomo", "--help") == 0
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "--fedfomo.num-downloads INT" in shown
    assert "(default: 5)" in shown
    assert "--local.keep-best" in shown
    config = parse_comparison(["--methods", "fedfomo", "fedavg", "--fedfomo.num-downloads", "3", "--local.keep-best"])
    assert config.options == {"fedfomo": {"num_downloads": 3}, "local": {"keep_best": True}}
    assert [run.options for run in runs_of(config)][:3] == [{"keep_best": True}, {"num_downloads": 3}, {}]


def test_options_in_a_file_are_defaults_of_their_flags(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[fedfomo]\nnum_downloads = 3\nepsilon = 0.5\n")
    assert parse_run([str(path)]).options == {"num_downloads": 3, "epsilon": 0.5}
    assert parse_run([str(path), "--fedfomo.epsilon", "0.1"]).options == {"num_downloads": 3, "epsilon": 0.1}


def test_a_terminated_run_says_how_to_go_on_and_its_report_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedfomo", "run", "--out", str(folder), *SMALL, "--rounds", "5000"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(folder.glob("checkpoints/after-round-*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    _, said = process.communicate()
    assert process.returncode == 143
    line = f"fedfomo: stopped; nothing is lost up to the last complete round: go on with `fedfomo resume {folder}`"
    assert said.strip() == line

    assert call("report", str(folder)) == 0
    said = capsys.readouterr().out
    assert re.search(r"this run is not finished, \d+ of 5000 rounds are done: unless it is still running, ", said)
    assert f"`fedfomo resume {folder}`" in said
    assert "with method fedfomo: leave out --method local" in refusal(
        capsys, "report", str(folder), "--method", "local"
    )
    assert "with seed 0: leave out --seed 4" in refusal(capsys, "report", str(folder), "--seed", "4")


def test_ctrl_c_during_the_imports_is_silent() -> None:
    # The command line's first import is replaced by one in which Ctrl-C arrives.
    code = """
import os, signal, sys, types
from fedfomo.__main__ import start
class Interrupted(types.ModuleType):
    def __getattr__(self, name):
        os.kill(os.getpid(), signal.SIGINT)
sys.modules["fedfomo.cli.main"] = Interrupted("fedfomo.cli.main")
start()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_unknown_flags_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--round", "3") == 2
    assert "--rounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "--method", "mocha-linear", "--privacy.noise", "1"], "past the noise"),
        (["compare", "--methods", "local", "--privacy.noise", "1", "--privacy.delta", "0.5"], "choose a smaller delta"),
    ],
)
def test_a_run_that_is_refused_late_leaves_no_folder(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refusal(capsys, *arguments, "--out", str(tmp_path / "run"), *SMALL)
    assert list(tmp_path.iterdir()) == []


def test_all_methods_are_those_that_can_run() -> None:
    config = parse_comparison(["--methods", "all", "--privacy.noise", "1", "--scenario", "dirichlet"])
    methods = {planned.method for planned in runs_of(config)}
    assert set(ALGORITHMS) - methods == {"oracle", "fedavg-shared", "mocha-linear", "ifca", "hypcluster", "fedala"}
    named, notes = with_methods_named(config)
    assert set(named.methods) == methods
    left_out = {method for note in notes for method in note.partition(" left out of all:")[0].split(", ")}
    assert left_out == set(ALGORITHMS) - methods


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("data")
    line = refusal(capsys, "run", "--out", str(tmp_path), *SMALL)
    assert "exists" in line
    assert "fedfomo resume" not in line  # there is no run to resume
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedfomo", "run", "--out", str(folder), *SMALL, "--rounds", "500"],
        stdout=subprocess.DEVNULL,
    )
    while not list(folder.glob("checkpoints/after-round-*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    path = folder / "config.toml"
    path.write_text(path.read_text().replace("learning_rate = 0.1", "learning_rate = 0.2"))
    assert "another configuration" in refusal(capsys, "resume", str(folder))


def test_clients_with_too_little_data_are_named_and_do_not_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = ["--clients", "400", "--scenario", "dirichlet", "--rounds", "1", "--epochs", "1", "--workers", "0"]
    assert call("run", "--method", "fedfomo", "--out", str(tmp_path / "run"), *many) == 0
    assert re.search(r"client \d+ has .* it receives models but contributes none", capsys.readouterr().out)


def test_who_uploads_nothing_new_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    still = ["--learning-rate", "0", "--method", "fedfomo-robust", "--fedfomo-robust.flag-free-riders"]
    assert call("run", "--out", str(tmp_path / "run"), *SMALL, *still) == 0
    assert re.search(r"client 0 uploaded nearly nothing new in \d rounds", capsys.readouterr().out)
    last = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["suspected"]["0"] == "its own last model again"


def test_the_data_set_decides_the_defaults_however_it_is_spelled() -> None:
    for words in (["--dataset", "cifar10"], ["--dataset=cifar10"]):
        training = parse_run(words).setting.training
        assert (training.batch_size, training.augment) == (50, True)
    assert parse_run(["--rounds", "2"]).setting.training.batch_size == 20
