"""What docs/fedfomo-plus-design.md says of the search for the form of FedFomo+: all that was tried, and its cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.fedfomo_plus import search
from experiments.fedfomo_plus.ablations import by_variant, difference, differences
from experiments.fedfomo_plus.variants import BESIDE, VARIANTS
from experiments.markdown import MISSING, NOTHING, table, wrapped

PAGE = Path("docs/fedfomo-plus-design.md")
VERSION_1 = "one start for all, no bound on lengths (version 1)"
ATTACKS = {"none": "no attack", "1e30": "1e30", "label-flip": "label-flip", "mixed": "mixed"}


def variants(results: Path) -> str:
    """Return what every variant differs by from FedFomo+."""
    return differences(search.lines(results / "fedfomo_plus" / "search.jsonl"), [*VARIANTS, *BESIDE])


def earlier(results: Path) -> str:
    """Return by how much every earlier form differs in accuracy from version 1."""
    lines = search.lines(results / "fedfomo_plus" / "earlier.jsonl")
    return differences(lines, list(dict.fromkeys(line["variant"] for line in lines)), VERSION_1)


def version_3(results: Path) -> str:
    """Return the forms among which version 3 was chosen, under poison and on features."""
    lines = search.lines(results / "fedfomo_plus" / "version_3.jsonl")
    if not lines:
        return NOTHING
    poisoned = {(one["form"], one["attack"]): one["accuracy"] for one in lines if "attack" in one}
    clean = by_variant(lines, "form")
    before = clean["version 2"]
    regimes = [name for name in search.REGIMES if any(name in runs for runs in clean.values())]
    rows: list[list[str]] = []
    for form in dict.fromkeys(one["form"] for one in lines):
        entries = [f"{poisoned[form, attack]:.1f}" if (form, attack) in poisoned else MISSING for attack in ATTACKS]
        entries += [difference(clean.get(form, {}).get(name, {}), before.get(name, {})) for name in regimes]
        rows.append([form, *entries])
    return table(("form", *ATTACKS.values(), *regimes), rows)


def budget(results: Path) -> str:
    """Say how many runs chose the form, and what they took."""
    folder = results / "fedfomo_plus"
    runs = [line for name in ("earlier", "search") for line in search.lines(folder / f"{name}.jsonl")]
    third = search.lines(folder / "version_3.jsonl")
    if not runs:
        return NOTHING
    on_features = [line for line in third if "regime" in line]
    seeds = sorted({line["seed"] for line in [*runs, *on_features]})
    minutes = sum(line["seconds"] for line in runs) / 60
    return wrapped(
        f"{len(runs) + len(on_features)} runs on features, with the seeds {', '.join(map(str, seeds))}. Those of the"
        f" first two tables took {minutes:.0f} minutes of one core. {len(third) - len(on_features)} mean accuracies"
        " under poison, each over six seeds. The runs of the CNN on this page come on top."
    )


def cnn(results: Path) -> str:
    """Return the check on the CNN, round by round."""
    lines = search.lines(results / "fedfomo_plus" / "cnn.jsonl")
    if not lines:
        return NOTHING
    rounds = sorted({line["round"] for line in lines})
    rows: list[list[str]] = []
    for regime, name in dict.fromkeys((line["regime"], line["variant"]) for line in lines):
        known = {
            line["round"]: line["accuracy"] for line in lines if (line["regime"], line["variant"]) == (regime, name)
        }
        rows.append([regime, name, *(f"{known[r]:.1f}" if r in known else MISSING for r in rounds)])
    return table(("regime", "form", *(f"after {r}" for r in rounds)), rows, words=2)


BLOCKS: dict[str, Callable[[Path], str]] = {
    "variants": variants,
    "earlier": earlier,
    "version": version_3,
    "budget": budget,
    "cnn": cnn,
}
"""Blocks of the page, by their name."""
