"""The page of the CNN on images: who wins where with a fifth of the data, and how this changes with all data."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.iclr2021 import standings_tables as tables
from experiments.iclr2021.cnn_standings import cnn_standings
from experiments.iclr2021.paper_tables import FOMO_5, TABLES, Column, Row
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import Cell
from experiments.markdown import MISSING, NOTHING, signed, wrapped

REGIMES = TABLES["regimes"]
INTRODUCTION = """\
The authors' CNN on images. Every regime has 15 clients with a fifth of their data each, and the paper's rounds and
epochs. The latent groups are those that ship with the library, of ImageNet features. [The rule](README.md) for "ahead",
"even" and "behind" is the same as on features. Accuracy is the last reading, after the last federated update, since
only every fourth round is scored. Few seeds make wide intervals, so much is still open. CFL, Ditto, FedALA and FedRep
have the option that validation data chose [on features](features.md#how-settings-were-chosen); all other methods have
their defaults. The learning rate is 0.1 throughout."""


def page(results: Results) -> str:
    """Return the page."""
    found = cnn_standings(results)
    parts = [
        "# The CNN: who wins where",
        INTRODUCTION,
        f"    python -m experiments.iclr2021 regimes --scale lite --seeds {REGIMES.runs} --data FOLDER",
        tables.long_table(found),
        "## All of the data",
        wrapped(
            "One seed decides nothing by the rule. It shows how the differences change with five times as much data:"
            " accuracy in %, and in brackets by how many points FedFomo is ahead, both with seed 0."
        ),
        "    python -m experiments.iclr2021 regimes --scale paper --data FOLDER",
        full_protocol(results),
    ]
    for one in found:
        parts += [f"## {one.label}", tables.regime_table(one, with_last=False)]
    return "\n\n".join(parts) + "\n"


def full_protocol(results: Results, leader: str = FOMO_5.name) -> str:
    """Return the regimes that are computed with all data, beside a fifth of them, with the first seed.

    In brackets is a leader's lead.
    """
    known = [
        (c, r) for c in REGIMES.columns for r in REGIMES.rows if _accuracy(results, c, r.name, "paper") is not None
    ]
    columns = [column for column in REGIMES.columns if any(column == one for one, _ in known)]
    rows = [row for row in REGIMES.rows if any(row == one for _, one in known)]
    if not known:
        return NOTHING
    heads = [f"{column.heading}: {words}" for column in columns for words in ("a fifth", "all")]
    lines = [f"| method | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    lines += [f"| {row.label} | {' | '.join(_entries(results, columns, row, leader))} |" for row in rows]
    return "\n".join(lines)


def _entries(results: Results, columns: Sequence[Column], row: Row, leader: str) -> list[str]:
    entries: list[str] = []
    for column in columns:
        for scale in ("lite", "paper"):
            ours = _accuracy(results, column, row.name, scale)
            best = _accuracy(results, column, leader, scale)
            ahead = "" if ours is None or best is None or row.name == leader else f" ({signed(best - ours)})"
            entries.append(MISSING if ours is None else f"{ours:.1f}{ahead}")
    return entries


def _accuracy(results: Results, column: Column, method: str, scale: str) -> float | None:
    """Return a method's mean accuracy in % with seed 0."""
    variant = next(row.variant for row in REGIMES.rows if row.name == method)
    result = results.get(Cell(column.case, variant, scale))
    return None if result is None else result.mean()
