"""The table for whoever reads no other: where FedFomo wins, where it does not, and what the paper has there."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.iclr2021.catalogue import FOMO_5
from experiments.iclr2021.cells import AMOUNTS
from experiments.iclr2021.comparison import Standing, standings
from experiments.iclr2021.leads import EVEN
from experiments.iclr2021.results import Results, signed

HEAD = """\
| setting | data | FedFomo | best of the others | here FedFomo | in the paper it | mixed clients |
| --- | --- | ---: | --- | --- | --- | ---: |"""


def headline(results: Results) -> str:
    """Return a line for every setting that is computed."""
    found = standings(results)
    return "\n".join([HEAD, *map(_line, _once_each(found))]) if found else "Nothing has been computed yet."


def _once_each(found: Sequence[Standing]) -> list[Standing]:
    """Keep one scale of every setting: one at which it is decided, or else the largest."""
    kept: dict[str, Standing] = {}
    for standing in found:
        if standing.where not in kept or (standing.is_decided and not kept[standing.where].is_decided):
            kept[standing.where] = standing
    return list(kept.values())


def _line(standing: Standing) -> str:
    seeds, best, mixed = len(standing.seeds), standing.best, standing.best_among_mixed
    entries = [
        standing.where,
        AMOUNTS[standing.scale] + (f", {seeds} seeds" if seeds > 1 else ""),
        f"{standing.mean(FOMO_5):.1f}",
        best.described(seeds),
        f"**{_said(best.lead.mean)}**" if standing.is_decided else f"{_open(standing)} ({signed(best.lead.mean)})",
        _said(standing.papers_lead),
        "–" if mixed is None else signed(mixed.lead.mean),
    ]
    return f"| {' | '.join(entries)} |"


def _open(standing: Standing) -> str:
    return "even" if standing.best.lead.is_even and standing.has_papers_rivals else "open"


def _said(lead: float) -> str:
    if abs(lead) < EVEN:
        return "even"
    return f"{'wins' if lead > 0 else 'loses'} by {abs(lead):.1f}"
