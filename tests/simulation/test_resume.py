"""Runs that are killed, damaged or continued elsewhere end in the same bits as runs that are left alone."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from faults import Disk
from fedfomo.algorithms import make_algorithm
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.errors import InputError
from fedfomo.runs.config_io import to_cli
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import MOST_MATRICES, simulate
from killed_runs import KILLED, Alone, command, config_of, fingerprint, run_to_end
from toy_problems import points_problem

FEDFOMO = [sys.executable, "-m", "fedfomo"]
RUN = ["run", "--method", "fedfomo", "--clients", "6", "--distributions", "2", "--rounds", "8", "--workers", "2"]


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def test_a_run_killed_three_times_ends_like_one_left_alone(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    subprocess.run([*FEDFOMO, *RUN, "--out", str(alone)], check=True, capture_output=True)

    command = [*FEDFOMO, *RUN, "--out", str(killed)]
    for rounds_seen in (1, 3, 6):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while _lines(killed / "rounds.jsonl") < rounds_seen and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL  # the kill landed before the end
        command = [*FEDFOMO, "resume", str(killed)]
    # Finishing in another number of processes changes nothing either.
    subprocess.run([*command, "--workers", "1"], check=True, capture_output=True)

    assert _lines(killed / "rounds.jsonl") == 8
    assert fingerprint(killed) == fingerprint(alone)


class _Interrupt(Callback):
    """Stops a run after some round, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self._after = after

    def round_done(self, finished: FinishedRound) -> None:
        if finished.round == self._after:
            raise KeyboardInterrupt


def _problem() -> FederatedProblem:
    rng = stream(0, "test data")
    clients: list[ClientData] = []
    for client in range(4):
        centre = 2.0 if client % 2 else -2.0
        inputs = torch.randn(30, 2, generator=rng) + centre
        examples = Examples(inputs, (inputs.sum(dim=1) > 2 * centre).long())
        clients.append(ClientData(*(examples.take(torch.arange(k, k + 10)) for k in (0, 10, 20))))
    # Wide enough that a model does not fit into a reference and must go to a file.
    model = Model(torch.nn.Sequential(torch.nn.Linear(2, 200), torch.nn.ReLU(), torch.nn.Linear(200, 2)))
    return FederatedProblem(model, model.read(), clients, Sgd(epochs=1), seed=3)


def _run(folder: Path, interrupt_after: int | None = None, told: list[str] | None = None, configuration: str = "a"):
    folder.mkdir(exist_ok=True)
    home = RunDirectory(folder, configuration, (told if told is not None else []).append)
    try:
        callback = None if interrupt_after is None else _Interrupt(interrupt_after)
        result = simulate(_problem_once(), make_algorithm("fedfomo"), SimulationConfig(rounds=6), home, callback)
        return torch.stack(list(result.models.values())), (folder / "rounds.jsonl").read_bytes()
    finally:
        home.close()


_problems: list[FederatedProblem] = []


def _problem_once() -> FederatedProblem:
    """Build the problem once: its initial model is drawn at random."""
    if not _problems:
        _problems.append(_problem())
    return _problems[0]


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "run", interrupt_after=3)
    return tmp_path / "run"


def _expected(tmp_path: Path):
    return _run(tmp_path / "expected")


def _newest_checkpoint(folder: Path) -> Path:
    return max((folder / "checkpoints").iterdir())


def _same(a: tuple[torch.Tensor, bytes], b: tuple[torch.Tensor, bytes]) -> bool:
    return torch.equal(a[0], b[0]) and a[1] == b[1]


def test_two_checkpoints_are_kept_and_no_file_that_neither_needs(interrupted: Path) -> None:
    names = sorted(path.name for path in (interrupted / "checkpoints").iterdir())
    assert names == ["after-round-00003.json", "after-round-00004.json"]
    rounds = {path.name[:11] for path in (interrupted / "tensors").iterdir()}
    assert rounds == {"round-00002", "round-00003"}


def test_a_long_run_keeps_no_more_matrices_than_a_reader_needs(tmp_path: Path) -> None:
    home = RunDirectory(tmp_path, "a", print)
    try:
        simulate(points_problem(2), make_algorithm("fedfomo"), SimulationConfig(rounds=MOST_MATRICES + 3), home)
    finally:
        home.close()
    kept = sorted(path.stem for path in (tmp_path / "affinity").iterdir())
    assert len(kept) == (MOST_MATRICES + 4) // 2
    assert kept[-1] == f"after-round-{MOST_MATRICES + 3:05d}"


@pytest.mark.parametrize(
    "damage", ["flipped bit in a tensor", "truncated manifest", "lost tensor file", "empty manifest"]
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(interrupted: Path, tmp_path: Path, damage: str) -> None:
    manifest = _newest_checkpoint(interrupted)
    tensor_file = max((interrupted / "tensors").glob("round-00003-clients-*"))
    if damage == "flipped bit in a tensor":
        content = bytearray(tensor_file.read_bytes())
        content[-5] ^= 0x10
        tensor_file.write_bytes(content)
    elif damage == "lost tensor file":
        tensor_file.unlink()
    else:
        manifest.write_bytes(manifest.read_bytes()[: 0 if damage == "empty manifest" else -40])
    told: list[str] = []
    after = _run(interrupted, told=told)
    assert len(told) == 1
    assert "after-round-00004.json cannot be used" in told[0]
    assert _same(after, _expected(tmp_path))


def test_every_bit_flip_in_a_manifest_is_noticed(interrupted: Path) -> None:
    manifest = _newest_checkpoint(interrupted)
    whole = manifest.read_bytes()
    home = RunDirectory(interrupted, "a", lambda _: None)
    for position in range(0, len(whole), max(1, len(whole) // 97)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        manifest.write_bytes(damaged)  # put aside in the last pass, if its damage was noticed
        found = home.checkpoints.newest("a")
        assert found is not None
        assert found.rounds_done == 3
    home.close()


def test_a_copy_of_an_older_manifest_is_passed_over(interrupted: Path, tmp_path: Path) -> None:
    older, newest = sorted((interrupted / "checkpoints").iterdir())
    shutil.copy(older, newest)
    told: list[str] = []
    assert _same(_run(interrupted, told=told), _expected(tmp_path))
    assert "after-round-00004.json cannot be used: it is damaged" in told[0]


def _flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_round_whose_line_of_the_log_is_damaged_is_played_again(interrupted: Path, tmp_path: Path) -> None:
    _flip(interrupted / "rounds.jsonl", -9)
    told: list[str] = []
    assert _same(_run(interrupted, told=told), _expected(tmp_path))
    assert "after-round-00004.json cannot be used: rounds.jsonl is damaged" in told[0]


@pytest.mark.parametrize("damage", ["flipped bit", "lost"])
def test_a_log_that_is_damaged_further_back_is_for_its_owner_to_decide_on(interrupted: Path, damage: str) -> None:
    log = interrupted / "rounds.jsonl"
    whole = log.read_bytes()
    if damage == "flipped bit":
        _flip(log, 9)
    else:
        log.unlink()
    with pytest.raises(InputError, match=r"rounds.jsonl is damaged or not all there: put it back from a copy, or"):
        _run(interrupted)
    log.write_bytes(whole)
    told: list[str] = []
    _run(interrupted, told=told)
    assert told == []  # nothing was put aside


def test_what_killed_processes_had_begun_to_write_is_deleted(interrupted: Path) -> None:
    begun = [interrupted / folder / "file.123.unfinished" for folder in ("affinity", "checkpoints", "tensors", ".")]
    for path in begun:
        path.write_bytes(b"half")
    _run(interrupted)
    assert not any(path.exists() for path in begun)


def test_half_a_line_of_times_is_dropped(interrupted: Path) -> None:
    with (interrupted / "seconds.jsonl").open("a") as file:
        file.write('{"round": 4, "trai')
    _run(interrupted)
    rounds = [json.loads(line)["round"] for line in (interrupted / "seconds.jsonl").read_text().splitlines()]
    assert rounds == list(range(6))


def test_attempts_are_counted_each_for_its_round(tmp_path: Path) -> None:
    home = RunDirectory(tmp_path, "a", print)
    assert [home.count_attempt(n) for n in (3, 13, 3, 1, 3)] == [(1, 1), (2, 1), (3, 2), (4, 1), (5, 3)]
    home.close()


def test_the_number_that_servers_of_earlier_versions_wrote_is_counted_on(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("2")
    home = RunDirectory(tmp_path, "a", print)
    assert [home.count_attempt(n) for n in (1, 1)] == [(3, 1), (4, 2)]
    home.close()


def test_a_lost_worker_costs_one_line(tmp_path: Path) -> None:
    """The first of two workers to write what a client left is killed, as the system does when memory runs out."""
    config = config_of(rounds=2, clients=2, vectorise=False)
    alone = Alone(tmp_path / "alone", config)
    killed_at = next(n for n, step in enumerate(alone.steps) if "-clients-" in step.file)
    folder = tmp_path / "run"
    flags = shlex.split(" ".join(to_cli(config)))
    first = Disk(folder, "kill", killed_at).stand_between
    code, said = command(["run", *flags, "--out", str(folder)], config, 2, first)
    assert code == 2
    assert len(said.splitlines()) == 1
    assert "a worker process died (exit code -9)" in said
    assert f"fedfomo resume {folder}" in said
    assert alone.fault_in(folder, 0, run_to_end(folder, config)) is None


def test_a_run_that_was_finished_but_not_cleared_up_is(tmp_path: Path) -> None:
    config = config_of(rounds=2, clients=2, vectorise=False)
    alone = Alone(tmp_path / "alone", config)
    cleared_at = max(n for n, step in enumerate(alone.steps) if step.file.startswith("result.json")) + 2
    folder = tmp_path / "run"
    assert run_to_end(folder, config, first=Disk(folder, "kill", cleared_at).stand_between).exit_code == KILLED
    assert (folder / "result.json").exists()
    assert (folder / "checkpoints").exists()
    assert alone.fault_in(folder, 2, run_to_end(folder, config)) is None


def test_without_any_whole_checkpoint_the_run_starts_anew(interrupted: Path, tmp_path: Path) -> None:
    for path in (interrupted / "checkpoints").iterdir():
        path.write_bytes(b"{}")
    assert _same(_run(interrupted), _expected(tmp_path))


def test_a_checkpoint_of_another_configuration_is_refused(interrupted: Path) -> None:
    with pytest.raises(InputError, match="another configuration"):
        _run(interrupted, configuration="b")


def test_a_folder_in_use_is_refused(interrupted: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fedfomo.engine.run_dir import RunDirectory\n"
        "home = RunDirectory(Path(sys.argv[1]), 'a', print); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(interrupted)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(InputError, match="in use by another process"):
            _run(interrupted)
    finally:
        holder.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_costs_one_line_and_no_finished_round(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("this machine does not allow mounts")
    try:
        command = [*FEDFOMO, *RUN, "--out", str(disk / "run")]
        full = subprocess.run(command, capture_output=True, text=True)
        assert full.returncode == 2
        assert "No space left on device" in full.stderr
        assert "fedfomo resume" in full.stderr
        assert len(full.stderr.strip().splitlines()) == 1
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        subprocess.run([*FEDFOMO, "resume", str(disk / "run")], check=True, capture_output=True)
        alone = tmp_path / "alone"
        subprocess.run([*FEDFOMO, *RUN, "--out", str(alone)], check=True, capture_output=True)
        assert fingerprint(disk / "run") == fingerprint(alone)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
