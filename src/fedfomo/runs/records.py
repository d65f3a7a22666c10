"""What is kept of a finished run: scores, matrices, models; and how scores of many clients are summarised."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import msgspec

from fedfomo.core.archives import read_tensors
from fedfomo.core.metrics import Score, renamed
from fedfomo.core.round import CommunicationCost
from fedfomo.core.sparse import SparseMatrix
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.errors import reading
from fedfomo.io import read_lines, write_atomically
from fedfomo.privacy.accountant import EpsilonSpent
from fedfomo.simulation.simulate import DENSE_LIMIT

MATRICES = "matrices.safetensors"
MOST_IN_JSON = 100  # clients, whose matrices are written as rows in result.json


@dataclass(frozen=True)
class Summary:
    """The spread of one figure over clients."""

    mean: float  # every client counts alike, however many examples it has
    std: float
    worst: float
    tenth_percentile: float
    share_better: float | None  # than training alone; None: there is nothing to compare with
    share_worse: float | None
    num_clients: int  # those with test examples


def summarise(figures: Mapping[int, float], local: Mapping[int, float] | None = None) -> Summary:
    """Summarise figures by client, leaving out clients without test examples."""
    known = {client: value for client, value in figures.items() if math.isfinite(value)}
    if not known:
        return Summary(math.nan, math.nan, math.nan, math.nan, None, None, 0)
    values = sorted(known.values())
    better = worse = None
    if local is not None:
        better = fmean(float(value > local[client]) for client, value in known.items())
        worse = fmean(float(value < local[client]) for client, value in known.items())
    return Summary(fmean(values), pstdev(values), values[0], percentile(values, 0.1), better, worse, len(values))


def percentile(ascending: Sequence[float], share: float) -> float:
    """Interpolate between the two values nearest to a share of the way up."""
    position = share * (len(ascending) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (position - below) * (ascending[above] - ascending[below])


@dataclass(frozen=True)
class RunRecord:
    """What is kept of a finished run."""

    method: str
    options: Mapping[str, Any]
    seed: int
    after_update: Mapping[int, Score]
    after_training: Mapping[int, Score]
    traffic: CommunicationCost
    affinity: list[list[float]] | None  # who values whom: receiver × giver; None for more clients than DENSE_LIMIT
    taken: list[list[float]] | None  # who has learnt from whom
    refusals: Mapping[int, int]  # how many uploads of each client were refused
    gradients: int  # how many examples were differentiated, each as often as it was
    spent: Mapping[int, EpsilonSpent] | None  # ε of each client's records at the end; None: the run was not private
    groups: list[int] | None  # the distribution that each client draws its training data from
    groups_found: list[int] | None  # by clustering the affinity matrix
    group_agreement: float | None  # adjusted Rand index between the two
    seconds: float  # of the process that finished the run
    metric: str = "accuracy"  # the name of the primary metric
    best_round: int | None = None  # whose models these are, the best on validation; None: those of the last update

    def figures(self, point: str = "after_update") -> dict[int, float]:
        """Return each client's primary metric on its test examples at one of the two points of evaluation."""
        return {client: score.metric for client, score in getattr(self, point).items()}

    def summary(self, local: RunRecord | None = None, point: str = "after_update") -> Summary:
        """Summarise the primary metric, beside that of local training if it is given."""
        return summarise(self.figures(point), local.figures() if local else None)


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Read the log of a run, line by line, with scores under today's names."""
    return [
        {
            **line,
            **{
                point: {client: renamed(score) for client, score in line[point].items()}
                for point in ("after_update", "after_training")
            },
        }
        for line in read_lines(folder / "rounds.jsonl")
    ]


def write_record(directory: RunDirectory, record: RunRecord, matrices: Mapping[str, SparseMatrix | None]) -> None:
    """Write what is kept of a run that is finished; its result.json appears last, when all else is on disk.

    Large matrices are written as they are, sparse and binary: as JSON, those of 1,000 clients take half a minute.
    """
    large = {name: matrix for name, matrix in matrices.items() if matrix is not None and matrix.size > MOST_IN_JSON}
    if large:
        record = replace(record, **dict.fromkeys(large))
        packed = {
            f"{n}.{field}": values.clone() for n, matrix in large.items() for field, values in vars(matrix).items()
        }
        directory.write_tensors(MATRICES, packed, durable=False)
    directory.sync()
    # Ten times as fast as the standard library; like `to_json`, it writes what is not a number as null.
    content = msgspec.json.encode(record, enc_hook=_plain)
    write_atomically(directory.folder / "result.json", msgspec.json.format(content, indent=1))


def read_record(folder: Path) -> RunRecord:
    """Read what is kept of a finished run."""
    path = folder / "result.json"
    with reading(path, "delete it and resume the run"):
        content: dict[str, Any] = json.loads(path.read_bytes())
        for point in ("after_update", "after_training"):
            content[point] = {int(client): Score.from_dict(score) for client, score in content[point].items()}
        content["traffic"] = CommunicationCost(**content["traffic"])
        content["refusals"] = {int(client): number for client, number in content["refusals"].items()}
        if (folder / MATRICES).exists():
            content |= _read_matrices(folder / MATRICES)
        if content.setdefault("spent", None) is not None:  # older runs knew of no privacy
            content["spent"] = {int(client): _spent(spent) for client, spent in content["spent"].items()}
        return RunRecord(**content)


def dense_rows(table: SparseMatrix | None) -> list[list[float]] | None:
    """Return a table as rows, unless it is missing or too large for that."""
    return None if table is None or table.size > DENSE_LIMIT else table.dense().tolist()


def _read_matrices(path: Path) -> dict[str, list[list[float]] | None]:
    tensors = read_tensors(path)
    names = {name.split(".")[0] for name in tensors}
    fields = ("starts", "columns", "values")
    return {name: dense_rows(SparseMatrix(*(tensors[f"{name}.{field}"] for field in fields))) for name in names}


def _plain(value: Any) -> float:
    if isinstance(value, float):  # NumPy's numbers, which metrics may return
        return float(value)
    raise TypeError(f"{value!r} is no plain value")


def _spent(content: dict[str, float | None]) -> EpsilonSpent:
    return EpsilonSpent(**{records: math.inf if epsilon is None else epsilon for records, epsilon in content.items()})
