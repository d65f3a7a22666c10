"""What is kept of a run: times over interruptions, and no more matrices than a repository should hold."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from experiments.iclr2021.paper_tables import LATENT_5, LOCAL
from experiments.iclr2021.run import MOST_NUMBERS, Stopwatch, compute, kept_affinities, round_to, spell
from experiments.iclr2021.settings import Cell
from fedfomo.errors import InputError
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.client_batching import Timings


def finished(round: int) -> FinishedRound:
    return FinishedRound(round, {}, {}, {}, Timings())


def test_rounds_that_were_lost_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "seconds.json"
    file.write_text("[50.0, 70.0, 900.0]")
    stopwatch = Stopwatch(file, Callback())
    stopwatch.start(2)
    assert 120 <= stopwatch.seconds < 125
    stopwatch.round_done(finished(2))
    assert len(json.loads(file.read_text())) == 3


def test_of_a_finished_run_all_rounds_count(tmp_path: Path) -> None:
    file = tmp_path / "seconds.json"
    file.write_text("[50.0, 70.0]")
    assert 120 <= Stopwatch(file, Callback()).seconds < 125  # killed after the last round: nothing is started again


@pytest.mark.parametrize("left", [b"", b"[50.0, 7", b"\0\0\0\0", b"null", b'["a"]', b"\xff"])
def test_times_that_a_power_cut_spoilt_are_forgotten(left: bytes, tmp_path: Path) -> None:
    file = tmp_path / "seconds.json"
    file.write_bytes(left)
    stopwatch = Stopwatch(file, Callback())
    assert stopwatch.seconds < 5
    stopwatch.round_done(finished(0))
    assert len(json.loads(file.read_text())) == 1


@pytest.mark.parametrize(
    ("clients", "rounds", "kept"), [(15, 20, [*range(1, 21)]), (100, 100, [50, 100]), (500, 10, [10])]
)
def test_large_matrices_are_kept_for_some_rounds_and_always_the_last(
    clients: int, rounds: int, kept: list[int], tmp_path: Path
) -> None:
    (tmp_path / "affinity").mkdir()
    for after in range(1, rounds + 1):
        matrix = torch.eye(clients, dtype=torch.float64) * after
        save_file({"affinity": matrix}, tmp_path / "affinity" / f"after-round-{after:05d}.safetensors")
    found = kept_affinities(tmp_path)
    assert found is not None
    assert found["after_rounds"] == kept
    assert found["matrices"][-1][0][0] == rounds
    assert len(kept) * clients**2 <= max(MOST_NUMBERS, clients**2)


def test_a_method_without_affinities_keeps_none(tmp_path: Path) -> None:
    assert kept_affinities(tmp_path) is None


def test_results_are_strict_json_with_a_line_for_each_part() -> None:
    spelt = spell({"a": [1.0, float("nan")], "b": {"c": "σ"}})
    assert json.loads(spelt) == {"a": [1.0, None], "b": {"c": "σ"}}
    assert len(spelt.splitlines()) == 4


HOLD = "import sys, time; from pathlib import Path; from fedfomo.engine.run_dir import lock_run; "
HOLD += "kept = lock_run(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"


def test_a_cell_that_another_process_computes_is_left_to_it(tmp_path: Path) -> None:
    cell = Cell(LATENT_5, LOCAL, "smoke")
    folder = tmp_path / cell.name
    folder.mkdir(parents=True)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        prepared: Any = None
        with pytest.raises(InputError, match="in use by another process"):
            compute(cell, cell.config(), prepared, tmp_path / "results", tmp_path, Callback(), print)
        assert (folder / "lock").exists()
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_significant_digits() -> None:
    assert (round_to(0.00123456), round_to(-98765.0, 3)) == (0.001235, -98800.0)
