"""One method several times with different options, and results as one table."""

import csv
import io
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import fedfomo
from cli_calls import SMALL, call, refused
from fedfomo.cli.terminal import parse_comparison, parse_run
from fedfomo.core.method_names import label_of, method_of, split_options
from fedfomo.errors import InputError
from fedfomo.runs.config import CompareConfig
from fedfomo.runs.config_io import read_toml
from fedfomo.runs.frame import COLUMNS, rows_of
from fedfomo.runs.records import read_record, read_rounds

SITES = ("leeds", "turin", "lyon")


def test_names_are_read_as_they_are_written() -> None:
    assert (label_of("fomo5=fedfomo"), method_of("fomo5=fedfomo")) == ("fomo5", "fedfomo")
    assert (label_of("own/file.py:Mine"), method_of("own/file.py:Mine")) == ("Mine", "own/file.py:Mine")
    assert method_of("x=own/file.py:Mine") == "own/file.py:Mine"
    assert split_options("x=own/file.py:Mine:mu=1,nu=2") == ("x=own/file.py:Mine", ["mu=1", "nu=2"])
    assert split_options("fedavg") == ("fedavg", [])


def test_options_are_written_with_the_method_or_as_flags_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('methods = ["a=fedfomo:num_downloads=1", "b=fedfomo"]\n[b]\nnum-downloads = 2\n')
    words = ["--methods", "a=fedfomo:num_downloads=1", "b=fedfomo", "--b.num-downloads", "2"]
    for config in (parse_comparison([str(file)]), parse_comparison(words), read_toml(file, CompareConfig)):
        assert config.methods == ("a=fedfomo", "b=fedfomo")
        assert config.options == {"a": {"num_downloads": 1}, "b": {"num_downloads": 2}}
    run = parse_run(["--method", "a=fedfomo:num_downloads=1", "--a.epsilon", "0.5"])
    assert (run.method, run.options) == ("a=fedfomo", {"num_downloads": 1, "epsilon": 0.5})


def test_a_sweep_is_compared_resumed_reported_and_framed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sweep"
    words = ("fomo1=fedfomo:num_downloads=1", "fomo5=fedfomo:num_downloads=5", "fedavg")
    call("compare", "--methods", *words, "--seeds", "0", *SMALL, "--out", str(folder))
    table = capsys.readouterr().out
    assert all(name in table for name in ("fomo1", "fomo5", "fedavg", "local"))
    records = {name: read_record(folder / f"{name}-seed-0") for name in ("fomo1", "fomo5")}
    assert records["fomo1"].traffic.models_down < records["fomo5"].traffic.models_down
    before = (folder / "fomo5-seed-0" / "result.json").read_bytes()
    (folder / "fomo1-seed-0" / "result.json").unlink()
    call("resume", str(folder), "--workers", "0")
    assert (folder / "fomo5-seed-0" / "result.json").read_bytes() == before
    call("report", str(folder), "--method", "fomo5")
    assert "fomo1" in (folder / "report.html").read_text()

    capsys.readouterr()
    call("runs", "frame", str(folder))
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert tuple(rows[0]) == COLUMNS
    line = read_rounds(folder / "fomo5-seed-0")[1]["after_update"]["3"]["metric"]
    wanted = {"method": "fomo5", "client": "3", "round": "2", "point": "updated", "metric": "accuracy"}
    assert [float(row["value"]) for row in rows if wanted.items() <= row.items()] == [line]
    final = {"method": "fomo5", "client": "3", "point": "final", "metric": "accuracy"}
    [value] = [float(row["value"]) for row in rows if final.items() <= row.items()]
    assert value == records["fomo5"].after_update[3].metric
    call("runs", "frame", str(folder), "--out", str(tmp_path / "all.csv"))
    assert len((tmp_path / "all.csv").read_text().splitlines()) == len(rows) + 1
    assert "choose .csv or .parquet" in refused(capsys, "runs", "frame", str(folder), "--out", "all.txt")


def test_two_methods_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("a=fedfomo", "a=fedavg", "--out", str(tmp_path / "sweep"))
    assert "two methods have the same name: local, a, a" in refused(capsys, "compare", "--methods", *words)


def federated(out: Path | None = None, **further: Any) -> fedfomo.FederationResult:
    rng = torch.Generator().manual_seed(0)

    def part(number: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(number, 4, generator=rng)
        return inputs, (inputs[:, 0] > 0).long()

    sites = {name: (part(20), part(20)) for name in SITES}
    return fedfomo.federate(lambda: nn.Linear(4, 2), sites, rounds=2, workers=0, out=out, **further)


def test_federate_takes_methods_by_names_of_ones_own(tmp_path: Path) -> None:
    methods = {
        "fomo1": ("fedfomo", {"num_downloads": 1}),
        "fomo2": fedfomo.FedFomo(num_downloads=2),
        "fedavg": "fedavg",
    }
    result = federated(tmp_path / "runs", methods=methods, seeds=(0, 1))
    assert result.method == "fomo1"
    assert {facts.method for facts in result.report_data.methods} == {"fomo1", "fomo2", "fedavg", "local"}
    rows = list(rows_of(tmp_path / "runs"))
    assert {row[0] for row in rows} == {"fomo1", "fomo2", "fedavg", "local"}
    assert {row[1] for row in rows} == {0, 1}
    assert {row[2] for row in rows} == set(SITES)
    again = federated(tmp_path / "runs", methods=methods, seeds=(0, 1))
    assert again.scores == result.scores
    with pytest.raises(InputError, match="leave out method, options and baselines"):
        federated(methods=methods, method="fedavg")


def test_a_frame_is_tidy() -> None:
    pytest.importorskip("pandas")
    found = federated(seeds=(0, 1)).frame()
    assert tuple(found.columns) == COLUMNS
    last = found[(found.point == "final") & (found.metric == "accuracy") & (found.method == "fedavg")]
    assert len(last) == 2 * len(SITES)


def test_without_pandas_a_frame_says_so() -> None:
    with mock.patch.dict("sys.modules", {"pandas": None}), pytest.raises(InputError, match="pip install pandas"):
        federated().frame()
