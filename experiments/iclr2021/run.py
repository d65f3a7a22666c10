"""Computing cells: ordinary runs in folders of their own, of each of which one small file is kept."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file

from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import Cell
from fedfomo.cli.terminal import console, fail, warn
from fedfomo.core.client import ClientId
from fedfomo.core.determinism import instructions
from fedfomo.core.device import bfloat16_instructions
from fedfomo.core.model import Score
from fedfomo.core.round import cohort_size
from fedfomo.engine.run_dir import lock_run
from fedfomo.errors import InputError, require
from fedfomo.io import to_json, write_atomically
from fedfomo.runs.callbacks import RunBar
from fedfomo.runs.config import NOT_RESULT_RELEVANT, ExperimentConfig, RunConfig
from fedfomo.runs.config_io import write_toml
from fedfomo.runs.provenance import source_digest
from fedfomo.runs.records import RunRecord
from fedfomo.runs.run import Tell, run_or_resume, start_run
from fedfomo.runs.setup import Prepared, prepare
from fedfomo.simulation.callbacks import Callback, FinishedRound

FORMAT = 1
MOST_NUMBERS = 20_000  # of all affinity matrices of a cell together: more would bloat the repository
FEWEST_MATRICES = 5  # of the first seed, from which figures are drawn
DIGITS = 4  # significant, of losses and times
COARSE = 3  # significant digits of affinities, of which there are many
SURROUNDINGS = (
    "python",
    "versions",
    "source",
    "processor",
    "instructions",
    "data",
    "scale",
    "parameters",
    "label_distance",
    "examples",
    "constant",
    "targets",
)
"""What a result keeps of what its run said of itself."""


class Stopwatch(Callback):
    """Counts the seconds of the rounds that a run keeps, over all interruptions, and passes everything on."""

    def __init__(self, file: Path, callback: Callback) -> None:
        self._file = file
        self._callback = callback
        self._rounds = _read_seconds(file)
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds so far, since the last round included."""
        return sum(self._rounds) + time.monotonic() - self._since

    def start(self, rounds_done: int) -> None:
        """Keep the times of the rounds that a checkpoint had."""
        self._rounds = self._rounds[:rounds_done]
        self._callback.start(rounds_done)

    def client_done(self, round: int, client: ClientId) -> None:
        """Pass it on."""
        self._callback.client_done(round, client)

    def round_done(self, finished: FinishedRound) -> None:
        """Note how long the round took."""
        now = time.monotonic()
        self._rounds.append(round_to(now - self._since))
        self._since = now
        write_atomically(self._file, json.dumps(self._rounds).encode(), durable=False)
        self._callback.round_done(finished)


def _read_seconds(file: Path) -> list[float]:
    """Return the times that were noted; none, if a power cut left half of them: no cell should fail for its times."""
    try:
        return [float(seconds) for seconds in json.loads(file.read_bytes())]
    except (FileNotFoundError, TypeError, ValueError):
        return []


def compute(
    cell: Cell, config: RunConfig, prepared: Prepared, results: Path, work: Path, callback: Callback, tell: Tell
) -> None:
    """Compute a cell, or what an interruption left of it, and keep its result; the run's folder is then deleted."""
    folder = work / cell.name
    if folder.exists():
        lock_run(folder).close()  # whoever computes the cell at this moment, with other code perhaps, keeps it
    if not can_go_on(folder, config):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        start_run(config, folder, prepared)
    stopwatch = Stopwatch(folder / "seconds.json", callback)
    record = run_or_resume(folder, prepared, stopwatch, tell)
    content = describe(cell, config, folder, record, stopwatch.seconds)
    path = results / cell.file
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, spell(content).encode())
    shutil.rmtree(folder)


def describe(cell: Cell, config: RunConfig, folder: Path, record: RunRecord, seconds: float) -> dict[str, Any]:
    """Gather what is kept of a finished run."""
    environment = json.loads((folder / "environment.json").read_bytes())
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    points = ("after_update", "after_training")
    # What a later version adds to a record, such as privacy budgets, is kept as well.
    further = {key: value for key, value in asdict(record).items() if key not in (*points, "affinity", "seconds")}
    return {
        "format": FORMAT,
        "cell": {"scale": cell.scale, "case": cell.case.name, "variant": cell.variant.name, "seed": cell.seed},
        "command": cell.command(),
        "config": _flat(config),
        **{key: environment[key] for key in SURROUNDINGS},
        **({"bf16": environment["bf16"]} if "bf16" in environment else {}),
        **{point: _scores(getattr(record, point), len(environment["examples"])) for point in points},
        "curves": {point: [_mean(line[point]) for line in rounds] for point in points},
        **further,
        "taken": _rounded(record.taken),
        "affinity": kept_affinities(folder, FEWEST_MATRICES if cell.seed == 0 else 1),
        "seconds": round(seconds, 1),
        "cores": os.cpu_count(),
        "finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def spell(content: dict[str, Any]) -> str:
    """Spell out a result as JSON, one line for each of its parts."""
    plain = json.loads(to_json(content))
    parts = [f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in plain.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def round_to(value: float, digits: int = DIGITS) -> float:
    """Round to a few significant digits."""
    return float(f"{value:.{digits}g}")


def can_go_on(folder: Path, config: RunConfig) -> bool:
    """Tell whether a run was started there with just this configuration, code and kind of processor."""
    if not ((folder / "config.toml").exists() and (folder / "environment.json").exists()):
        return False
    begun = json.loads((folder / "environment.json").read_bytes())
    here = source_digest(), instructions(), begun.get("bf16") and bfloat16_instructions()
    if (begun.get("source"), begun.get("instructions"), begun.get("bf16")) != here:
        return False
    return _decisive((folder / "config.toml").read_text()) == _decisive(write_toml(config))


def _decisive(configuration: str) -> list[str]:
    return [line for line in configuration.splitlines() if line.partition(" = ")[0] not in NOT_RESULT_RELEVANT]


def _flat(config: RunConfig) -> dict[str, Any]:
    """Return a configuration as one table, without what does not decide the result; privacy is a table of its own."""
    values = asdict(config)
    setting: dict[str, Any] = values.pop("setting")
    parts = {name: setting.pop(name) for name in ("scenario", "training")}
    values["options"] = [f"{name}={value}" for name, value in values["options"].items()]
    flat = {**values, **setting, **parts["scenario"], **parts["training"]}
    return {name: value for name, value in flat.items() if name not in (*NOT_RESULT_RELEVANT, "out")}


def _scores(scores: Mapping[int, Score], clients: int) -> dict[str, list[float | None]]:
    """Return accuracies and losses by client; a client that was never scored has none."""
    known = [scores.get(client) for client in range(clients)]
    return {
        "accuracy": [None if score is None else round(score.metric, 6) for score in known],
        "loss": [None if score is None else round_to(score.loss) for score in known],
    }


def _mean(scores: Mapping[str, Mapping[str, Any]]) -> float | None:
    known = [score["metric"] for score in scores.values() if score["metric"] is not None]
    return round(sum(known) / len(known), 6) if known else None


def kept_affinities(folder: Path, fewest: int = 1) -> dict[str, Any] | None:
    """Return the affinity matrices after some rounds: all of them, if they are small, and always the last."""
    files = sorted((folder / "affinity").glob("after-round-*.safetensors"))
    if not files:
        return None
    size = load_file(files[-1])["affinity"].numel()
    most = max(fewest, MOST_NUMBERS // size)
    kept = [files[round((n + 1) * len(files) / most) - 1] for n in range(most)] if len(files) > most else files
    return {
        "after_rounds": [int(file.stem.rpartition("-")[2]) for file in kept],
        "matrices": [_rounded(load_file(file)["affinity"].tolist()) for file in kept],
    }


def _rounded(rows: list[list[float]] | None) -> list[list[float]] | None:
    return None if rows is None else [[round_to(value, COARSE) if value else 0 for value in row] for row in rows]


if TYPE_CHECKING:
    from experiments.iclr2021.__main__ import ReproduceConfig


def compute_all(cells: Sequence[Cell], config: ReproduceConfig, results: Results) -> None:
    """Compute what is missing, one cell after the other; one that fails is named, and the others go on."""
    waiting = [cell for cell in cells if not results.has(cell)]
    needs_data = any(cell.config().setting.dataset != "digits" for cell in waiting)
    require(config.data is not None or not needs_data, "give the folder of the data sets: --data FOLDER")
    console.print(f"{len(cells) - len(waiting)} of {len(cells)} cells are done")
    failed: list[Cell] = []
    latest: tuple[ExperimentConfig, int, Prepared] | None = None
    for number, cell in enumerate(waiting):
        console.print(f"{cell.name}: {number + 1} of {len(waiting)}", soft_wrap=True)
        try:
            planned = cell.config(config.data, config.workers)
            if latest is None or latest[:2] != (planned.setting, planned.seed):
                latest = planned.setting, planned.seed, prepare(planned.setting, planned.seed)
            _compute(cell, planned, latest[2], config)
        except InputError as error:
            failed.append(cell)
            warn(f"{cell.name}: {error}")
        except OSError:  # a disk that is full, for one, would fail all the others too
            raise
        except Exception:  # a night's work must not end with the first method that breaks
            failed.append(cell)
            console.print_exception()
    if failed:
        fail(f"cells that failed, {len(failed)} in all: {', '.join(cell.name for cell in failed)}", 1)


def _compute(cell: Cell, planned: RunConfig, prepared: Prepared, config: ReproduceConfig) -> None:
    simulation, clients = prepared.simulation, len(prepared.problem.clients)
    title = f"{cell.variant.name}, {cell.case.name}, seed {cell.seed}"
    cohort = cohort_size(clients, simulation.participation)
    with RunBar(console, title, simulation.rounds, cohort, clients) as bar:
        compute(cell, planned, prepared, config.results, config.work, bar, warn)
