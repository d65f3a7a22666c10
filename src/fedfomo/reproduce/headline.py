"""The table for whoever reads no other: where FedFomo wins, where it does not, and what the paper has there."""

from __future__ import annotations

from collections.abc import Sequence

from fedfomo.reproduce.catalogue import FOMO_5
from fedfomo.reproduce.cells import AMOUNTS
from fedfomo.reproduce.comparison import Setting, computed_settings
from fedfomo.reproduce.leads import EVEN
from fedfomo.reproduce.results import Results, signed

HEAD = """\
| setting | data | FedFomo | best of the others | here FedFomo | in the paper it | mixed clients |
| --- | --- | ---: | --- | --- | --- | ---: |"""


def headline(results: Results) -> str:
    """Return a line for every setting that is computed."""
    settings = computed_settings(results)
    return "\n".join([HEAD, *map(_line, _once_each(settings))]) if settings else "Nothing has been computed yet."


def _once_each(settings: Sequence[Setting]) -> list[Setting]:
    """Keep one scale of every setting: one at which it is decided, or else the largest."""
    kept: dict[str, Setting] = {}
    for setting in settings:
        if setting.where not in kept or (setting.is_decided and not kept[setting.where].is_decided):
            kept[setting.where] = setting
    return list(kept.values())


def _line(setting: Setting) -> str:
    seeds, best, mixed = len(setting.seeds), setting.best, setting.best_among_mixed
    entries = [
        setting.where,
        AMOUNTS[setting.scale] + (f", {seeds} seeds" if seeds > 1 else ""),
        f"{setting.mean(FOMO_5):.1f}",
        best.described(seeds),
        f"**{_said(best.lead.mean)}**" if setting.is_decided else f"{_open(setting)} ({signed(best.lead.mean)})",
        _said(setting.papers_lead),
        "–" if mixed is None else signed(mixed.lead.mean),
    ]
    return f"| {' | '.join(entries)} |"


def _open(setting: Setting) -> str:
    return "even" if setting.best.lead.is_even and setting.has_papers_rivals else "open"


def _said(lead: float) -> str:
    if abs(lead) < EVEN:
        return "even"
    return f"{'wins' if lead > 0 else 'loses'} by {abs(lead):.1f}"
