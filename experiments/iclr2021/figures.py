"""The paper's figures, drawn from results alone: what has not been computed is left out, and the drawing says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.iclr2021.catalogue import (
    DOWNLOADS,
    EPSILONS,
    FEDAVG,
    FIGURES,
    FOMO_5,
    LATENT_5,
    NOISES,
    NUMBERS,
    PAPERS,
    TABLES,
    VALIDATION_FRACTIONS,
    downloading,
    exploring,
    splitting,
)
from experiments.iclr2021.cells import SHOWN, Case, Cell, Variant
from experiments.iclr2021.charts import Bar, Curve, bars, curves, key, matrix
from experiments.iclr2021.paper import published
from experiments.iclr2021.results import Accuracy, Result, Results
from experiments.iclr2021.svg import COLOURS, Picture, grid, titled

MATRICES = "; rows receive, columns give; light: valued, dark: harmful, by each row's own extremes; grey: never met"
READING = {
    "weights": MATRICES,
    "privacy": MATRICES,
}
SCALE_WORDS = {"paper": "full protocol", "lite": "a fifth of each client's data", "smoke": "a smoke run on digits"}
FEWEST = 2
"""Curves of a comparison: one by itself compares nothing."""
Drawing = Callable[[str, Results], list[Picture]]


def draw(name: str, results: Results, folder: Path, scales: Sequence[str] = SHOWN) -> list[Path]:
    """Draw a figure at every scale at which anything of it is computed."""
    figure = FIGURES[name]
    written: list[Path] = []
    for scale in scales:
        parts = DRAWINGS[name](scale, results)
        if not parts:
            continue
        cells = {cell.name: cell for cell in figure.cells(scale) if cell.is_telling}.values()
        missing = sum(not results.all_seeds(cell) for cell in cells)
        note = SCALE_WORDS[scale] + (f"; {missing} of {len(cells)} cells are not computed" if missing else "")
        note += READING.get(name, "")
        path = folder / f"{name}-{scale}.svg"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(titled(grid(parts, 1, 24), figure.title, note).document(), encoding="utf-8")
        written.append(path)
    return written


def clients(scale: str, results: Results) -> list[Picture]:
    """Accuracy with 100 clients over the number of latent distributions."""
    variants = dict.fromkeys(variant for _, variant in FIGURES["clients"].pairs)
    groups = {
        f"D = {number}": [_bar(Cell(Case("cifar10", "latent", number, 100), v, scale), results) for v in variants]
        for number in NUMBERS
    }
    return _if_any(groups, "100 clients, 10 a round")


def weights(scale: str, results: Results) -> list[Picture]:
    """The affinity matrix after some rounds, in every setting."""
    rows: list[Picture] = []
    for case, variant in FIGURES["weights"].pairs:
        result = results.get(Cell(case, variant, scale))
        if result is not None:
            name = f"{case.clients} clients, D = {case.distributions}"
            rows.append(grid(matrices(result, name), 5, 20))
    return rows


def exploration(scale: str, results: Results) -> list[Picture]:
    """FedFomo's accuracy over rounds for several ε and several M."""
    over = [
        _over_rounds(
            [exploring(epsilon) for epsilon in EPSILONS], "ε at the start, with M = 5", scale, results, EPSILONS, "ε"
        ),
        _over_rounds(
            [downloading(n) for n in DOWNLOADS], "M, with ε = 0.3 at the start", scale, results, DOWNLOADS, "M"
        ),
    ]
    return [grid(drawn, 2)] if (drawn := [picture for pictures in over for picture in pictures]) else []


def targets(scale: str, results: Results) -> list[Picture]:
    """Accuracy with foreign targets, and every client's weights for the others, with foreign and own targets."""
    table = TABLES["table3"]
    groups = {
        column.heading: [
            replace(_bar(Cell(column.case, variant, scale), results), paper=_paper(scale, variant, column.case))
            for variant in PAPERS
        ]
        for column in table.columns
    }
    parts = _if_any(groups, "Accuracy on foreign targets")
    for case, words in ((table.columns[0].case, "foreign targets"), (LATENT_5, "own targets")):
        result = results.get(Cell(case, FOMO_5, scale))
        if result is not None:
            names = [str(group) for group in sorted(set(result.content["groups"]))]
            line = f"Affinity to the others, with {words}; colour: the distribution that the other trains on"
            parts.append(grid([key(names, line), grid(client_curves(result), 5, 10)], 1, 10))
    return parts


def validation(scale: str, results: Results) -> list[Picture]:
    """Final accuracy over the share of validation data, and the way there."""
    final: list[tuple[float, float | None]] = []
    spreads: list[float] = []
    lines: list[Curve] = []
    for number, fraction in enumerate(VALIDATION_FRACTIONS):
        cell = Cell(splitting(fraction), FOMO_5, scale)
        found = results.accuracy(cell)
        final.append((fraction, found.mean if found else None))
        spreads.append(found.spread if found else 0.0)
        if found is not None:
            lines.append(Curve(f"{fraction:g}", results.curve(cell), COLOURS[number]))
    if len(lines) < FEWEST:
        return []
    last = Curve("", final, COLOURS[0], is_dotted=True, spreads=spreads)
    return [
        grid(
            [
                curves(lines, "Share of validation data", "federated update", "accuracy in %"),
                curves([last], "After the last update", "share of validation data", "accuracy in %", with_names=False),
            ],
            2,
        )
    ]


def privacy(scale: str, results: Results) -> list[Picture]:
    """Weights and accuracy under differential privacy."""
    parts: list[Picture] = []
    lines: list[Curve] = []
    for number, noise in enumerate(NOISES):
        for variant, dash in ((FOMO_5, ""), (FEDAVG, "4 3")):
            cell = Cell(replace(LATENT_5, noise=noise), variant, scale)
            result = results.get(cell)
            if result is None:
                continue
            lines.append(Curve(f"{variant.label}, σ = {noise:g}", results.curve(cell), COLOURS[number], dash))
            if variant is FOMO_5:
                parts.append(grid(matrices(result, f"σ = {noise:g}"), 5, 20))
    return [*parts, curves(lines, "Accuracy", "federated update", "accuracy in %", (360, 220))] if lines else []


DRAWINGS: dict[str, Drawing] = {
    "clients": clients,
    "weights": weights,
    "exploration": exploration,
    "targets": targets,
    "validation": validation,
    "privacy": privacy,
}


def matrices(result: Result, name: str, most: int = 5) -> list[Picture]:
    """Draw the affinity after the first round in which anybody met anybody, the last, and some between."""
    kept = result.content["affinity"]
    met = [number for number, rows in enumerate(kept["matrices"]) if _has_met(rows)]
    last = len(kept["after_rounds"]) - 1
    first = min(met, default=last)
    steps = min(most, last - first + 1)
    chosen = sorted({first + round(n * (last - first) / max(1, steps - 1)) for n in range(steps)})
    groups = result.content["groups"]
    words = [f"{name}, after round {kept['after_rounds'][n]}" for n in chosen]
    return [matrix(kept["matrices"][n], title, groups, 170) for n, title in zip(chosen, words, strict=True)]


def _has_met(rows: Sequence[Sequence[float]]) -> bool:
    return any(value for receiver, row in enumerate(rows) for giver, value in enumerate(row) if giver != receiver)


def client_curves(result: Result) -> list[Picture]:
    """Draw for every client its affinity to the others over rounds, coloured by their distributions."""
    kept, groups, aims = result.content["affinity"], result.content["groups"], result.content["targets"]
    pictures: list[Picture] = []
    for client in range(len(groups)):
        lines = [
            Curve(
                "",
                [
                    (after, rows[client][other])
                    for after, rows in zip(kept["after_rounds"], kept["matrices"], strict=True)
                ],
                COLOURS[groups[other]],
            )
            for other in range(len(groups))
            if other != client
        ]
        aim = groups[aims[client]]
        title = f"client {client}: trains on {groups[client]}, aims at {aim}"
        pictures.append(curves(lines, title, "round", "affinity", (190, 110), with_names=False))
    return pictures


def _over_rounds(
    variants: Sequence[Variant], title: str, scale: str, results: Results, values: Sequence[float], symbol: str
) -> list[Picture]:
    lines: list[Curve] = []
    for number, (variant, value) in enumerate(zip(variants, values, strict=True)):
        cell = Cell(LATENT_5, variant, scale)
        if results.all_seeds(cell):
            lines.append(Curve(f"{symbol} = {value:g}", results.curve(cell), COLOURS[number]))
    return [curves(lines, title, "federated update", "accuracy in %")] if len(lines) >= FEWEST else []


def _bar(cell: Cell, results: Results) -> Bar:
    found: Accuracy | None = results.accuracy(cell)
    if found is None:
        return Bar(cell.variant.label, None)
    return Bar(cell.variant.label, found.mean, found.spread)


def _paper(scale: str, variant: Variant, case: Case) -> float | None:
    """Return the paper's number with foreign targets; nothing for part of the data, with which it has none."""
    found = published("table3", variant.name, case) if scale == "paper" else None
    return None if found is None else found.mean


def _if_any(groups: dict[str, list[Bar]], title: str) -> list[Picture]:
    """Draw groups of bars: those in which anything is computed, with methods of which there is anything to see."""
    begun = {name: group for name, group in groups.items() if any(bar.value is not None for bar in group)}
    seen = {bar.name for group in begun.values() for bar in group if (bar.value, bar.paper) != (None, None)}
    shown = {name: [bar for bar in group if bar.name in seen] for name, group in begun.items()}
    return [bars(shown, title, "accuracy in %")] if shown else []
