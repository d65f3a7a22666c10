"""The paper's figures, drawn from results alone: what has not been computed is left out, and the drawing says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cycler import cycler
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from experiments.iclr2021.paired import Lead
from experiments.iclr2021.paper_tables import (
    DOWNLOADS,
    EPSILONS,
    FEDAVG,
    FIGURES,
    FOMO_5,
    LATENT_5,
    NOISES,
    NUMBERS,
    PAPER_METHODS,
    TABLES,
    VALIDATION_FRACTIONS,
    downloading,
    exploring,
    splitting,
)
from experiments.iclr2021.results import Accuracy, Result, Results
from experiments.iclr2021.settings import SHOWN, Cell, MethodConfig, Setting, published

WIDTH = 9.0
"""Of every figure, in inches, as are heights."""
MARGIN = 0.7
INK, FAINT = "#222222", "#d9d9d9"
# Colours that stay apart for most eyes (Okabe and Ito), and some more for those who need ten.
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"),
    *("#8c6d1f", "#7f7f7f", "#6a3d9a", "#b2b200", "#1b5e20"),
)
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "fedfomo",  # the same numbers make the same file
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "axes.axisbelow": True,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=COLOURS),
}
MATRICES = "\nrows receive, columns give; light: valued, dark: harmful, by each row's own extremes; grey: never met"
READING = {"weights": MATRICES, "privacy": MATRICES}
SCALE_WORDS = {"paper": "full protocol", "lite": "a fifth of each client's data", "smoke": "a smoke run on digits"}
FEWEST = 2
"""Curves of a comparison: one by itself compares nothing."""
UPDATE, ACCURACY = "federated update", "accuracy in %"
Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Panel:
    """A row of a figure: its height, and what draws it."""

    height: float
    draw: Callable[[SubFigure], None]


def draw(name: str, results: Results, folder: Path, scales: Sequence[str] = SHOWN) -> list[Path]:
    """Draw a figure at every scale at which anything of it is computed."""
    figure = FIGURES[name]
    written: list[Path] = []
    for scale in scales:
        panels = DRAWINGS[name](scale, results)
        if not panels:
            continue
        cells = {cell.name: cell for cell in figure.cells(scale) if cell.is_informative}.values()
        missing = sum(not results.all_seeds(cell) for cell in cells)
        note = SCALE_WORDS[scale] + (f"; {missing} of {len(cells)} cells are not computed" if missing else "")
        folder.mkdir(parents=True, exist_ok=True)
        written.append(folder / f"{name}-{scale}.svg")
        _save(panels, figure.title, note + READING.get(name, ""), written[-1])
    return written


def _save(panels: Sequence[Panel], title: str, note: str, path: Path) -> None:
    heights = [panel.height for panel in panels]
    with rc_context(STYLE):
        drawing = Figure(figsize=(WIDTH, sum(heights) + MARGIN), layout="constrained")
        drawing.suptitle(f"{title}\n{note}", fontsize=9)
        parts = drawing.subfigures(len(panels), 1, height_ratios=heights, squeeze=False)
        for panel, part in zip(panels, parts[:, 0], strict=True):
            panel.draw(part)
        drawing.savefig(path, format="svg", metadata={"Date": None})


def clients(scale: str, results: Results) -> list[Panel]:
    """Accuracy with 100 clients over the number of latent distributions."""
    variants = list(dict.fromkeys(variant for _, variant in FIGURES["clients"].pairs))
    columns = {f"D = {number}": Setting("cifar10", "latent", number, 100) for number in NUMBERS}
    return bars(columns, variants, "100 clients, 10 a round", scale, results)


def weights(scale: str, results: Results) -> list[Panel]:
    """The affinity matrix after some rounds, in every setting."""
    return [
        matrices(result, f"{case.clients} clients, D = {case.distributions}")
        for case, variant in FIGURES["weights"].pairs
        if (result := results.get(Cell(case, variant, scale))) is not None
    ]


def exploration(scale: str, results: Results) -> list[Panel]:
    """FedFomo's accuracy over rounds for several ε and several M."""
    wanted = (
        ("ε at the start, with M = 5", {f"ε = {epsilon:g}": exploring(epsilon) for epsilon in EPSILONS}),
        ("M, with ε = 0.3 at the start", {f"M = {number}": downloading(number) for number in DOWNLOADS}),
    )
    found = {title: _curves(LATENT_5, variants, scale, results) for title, variants in wanted}
    shown = {title: curves for title, curves in found.items() if len(curves) >= FEWEST}

    def drawn(part: SubFigure) -> None:
        for axes, (title, curves) in zip(_row_of_axes(part, len(shown)), shown.items(), strict=True):
            _plot(axes, curves, title)

    return [Panel(2.6, drawn)] if shown else []


def targets(scale: str, results: Results) -> list[Panel]:
    """Accuracy with foreign targets, and every client's weights for the others, with foreign and own targets."""
    columns = {column.heading: column.case for column in TABLES["table3"].columns}
    panels = bars(columns, PAPER_METHODS, "Accuracy on foreign targets", scale, results, papers="table3")
    for case, words in ((TABLES["table3"].columns[0].case, "foreign targets"), (LATENT_5, "own targets")):
        result = results.get(Cell(case, FOMO_5, scale))
        if result is not None:
            panels.append(client_curves(result, f"Affinity to the others, with {words}"))
    return panels


def validation(scale: str, results: Results) -> list[Panel]:
    """Final accuracy over the share of validation data, and the way there."""
    cells = {fraction: Cell(splitting(fraction), FOMO_5, scale) for fraction in VALIDATION_FRACTIONS}
    found = {fraction: accuracy for fraction, cell in cells.items() if (accuracy := results.accuracy(cell))}
    if len(found) < FEWEST:
        return []

    def drawn(part: SubFigure) -> None:
        way, end = _row_of_axes(part, 2)
        _plot(way, {f"{fraction:g}": results.curve(cells[fraction]) for fraction in found}, "Share of validation data")
        means, spreads = zip(*((accuracy.mean, accuracy.spread) for accuracy in found.values()), strict=True)
        end.errorbar(list(found), means, spreads, marker="o", markersize=3, ecolor=INK)
        _name(end, "After the last update", "share of validation data", ACCURACY)

    return [Panel(2.6, drawn)]


def privacy(scale: str, results: Results) -> list[Panel]:
    """Weights and accuracy under differential privacy."""
    panels: list[Panel] = []
    curves: dict[str, Points] = {}
    looks: list[tuple[str, str]] = []
    for noise, colour in zip(NOISES, COLOURS, strict=False):
        for variant, dash in ((FOMO_5, "-"), (FEDAVG, "--")):
            cell = Cell(replace(LATENT_5, noise=noise), variant, scale)
            result = results.get(cell)
            if result is not None:
                curves[f"{variant.label}, σ = {noise:g}"] = results.curve(cell)
                looks.append((colour, dash))
                panels += [matrices(result, f"σ = {noise:g}")] if variant is FOMO_5 else []

    def drawn(part: SubFigure) -> None:
        _plot(_row_of_axes(part, 1)[0], curves, "Accuracy", looks)

    return [*panels, Panel(2.8, drawn)] if curves else []


DRAWINGS: dict[str, Callable[[str, Results], list[Panel]]] = {
    "clients": clients,
    "weights": weights,
    "exploration": exploration,
    "targets": targets,
    "validation": validation,
    "privacy": privacy,
}


def bars(
    columns: Mapping[str, Setting],
    variants: Sequence[MethodConfig],
    title: str,
    scale: str,
    results: Results,
    papers: str = "",
) -> list[Panel]:
    """Draw groups of bars: columns and methods of which anything is computed, and the paper's numbers in full."""
    accuracies: dict[tuple[str, MethodConfig], Accuracy | None] = {
        (name, variant): results.accuracy(Cell(case, variant, scale))
        for name, case in columns.items()
        for variant in variants
    }
    begun = [name for name in columns if any(accuracies[name, variant] for variant in variants)]
    with_papers = papers if scale == "paper" else ""  # part of the data is no experiment of the paper's

    def printed(name: str, variant: MethodConfig) -> float | None:
        number = published(with_papers, variant.name, columns[name]) if with_papers else None
        return None if number is None else number.mean

    seen = [v for v in variants if any(accuracies[name, v] or printed(name, v) is not None for name in begun)]

    def drawn(part: SubFigure) -> None:
        (axes,) = _row_of_axes(part, 1)
        width = min(0.85 / len(seen), 0.12)
        for number, variant in enumerate(seen):
            places = np.arange(len(begun)) + (number - (len(seen) - 1) / 2) * width
            found = [accuracies[name, variant] for name in begun]
            axes.bar(places, [one.mean if one else 0.0 for one in found], 0.9 * width, label=variant.label)
            for place, name, one in zip(places, begun, found, strict=True):
                if one is not None and one.spread:
                    axes.errorbar(place, one.mean, one.spread, ecolor=INK)
                paper = printed(name, variant)
                if paper is not None:
                    label = "" if "the paper" in axes.get_legend_handles_labels()[1] else "the paper"
                    axes.hlines(paper, place - width / 2, place + width / 2, INK, label=label)
        axes.set_xticks(range(len(begun)), begun)
        axes.set_xlim(-0.6, len(begun) - 0.4)
        _name(axes, title, "", ACCURACY)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))

    return [Panel(3.0, drawn)] if begun else []


def draw_leads(axes: Axes, margin: float, series: Mapping[str, Sequence[Lead | None]], gap: float) -> None:
    """Draw leads with their intervals: a row for each regime, and in it a mark for each rival."""
    axes.axvspan(-margin, margin, color=FAINT, alpha=0.6, linewidth=0)
    axes.axvline(0, color="#222222", linewidth=0.8)
    for number, (label, leads) in enumerate(series.items()):
        offset = gap * (number - (len(series) - 1) / 2)
        marks = [(row + offset, lead) for row, lead in enumerate(leads) if lead is not None]
        axes.errorbar(
            [lead.mean for _, lead in marks],
            [place for place, _ in marks],
            xerr=[lead.half_width for _, lead in marks],
            fmt="o",
            markersize=4,
            color=COLOURS[number],
            label=label,
        )


def matrices(result: Result, name: str, most: int = 5) -> Panel:
    """Draw the affinity after the first round in which anybody met anybody, the last, and some between."""
    kept = result.content["affinity"]
    met = [number for number, rows in enumerate(kept["matrices"]) if _has_met(rows)]
    last = len(kept["after_rounds"]) - 1
    first = min(met, default=last)
    steps = min(most, last - first + 1)
    chosen = sorted({first + round(n * (last - first) / max(1, steps - 1)) for n in range(steps)})
    groups = result.content["groups"]
    borders = [client - 0.5 for client in range(1, len(groups)) if groups[client] != groups[client - 1]]

    def drawn(part: SubFigure) -> None:
        part.suptitle(name, fontsize=8)
        for axes, number in zip(_row_of_axes(part, most), chosen, strict=False):
            axes.imshow(matrix_colours(kept["matrices"][number]), interpolation="none")
            for border in borders:
                axes.axhline(border, color="white", linewidth=0.8)
                axes.axvline(border, color="white", linewidth=0.8)
            axes.set_title(f"after round {kept['after_rounds'][number]}")
        for axes in part.axes:
            axes.set_axis_off()

    return Panel(2.1, drawn)


def matrix_colours(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Colour a matrix: light above zero, dark below, each row by its own extremes; grey at zero; no diagonal."""
    values = np.array(rows, dtype=np.float64)
    np.fill_diagonal(values, 0.0)
    greatest, least = values.max(axis=1, keepdims=True), -values.min(axis=1, keepdims=True)
    heights = values / np.where(values > 0, np.where(greatest > 0, greatest, 1), np.where(least > 0, least, 1))
    colours = np.array(colormaps["viridis"]((1 + heights) / 2))
    colours[values == 0] = to_rgba(FAINT)
    colours[np.diag_indices(len(values))] = to_rgba("white")
    return colours


def client_curves(result: Result, title: str) -> Panel:
    """Draw for every client its affinity to the others over rounds, coloured by their distributions."""
    kept, groups, aims = result.content["affinity"], result.content["groups"], result.content["targets"]
    history = np.array(kept["matrices"], dtype=np.float64)
    height = -(-len(groups) // 5)

    def drawn(part: SubFigure) -> None:
        part.suptitle(f"{title}; colour: the distribution that the other trains on", fontsize=8)
        grid = part.subplots(height, 5, squeeze=False, sharex=True)
        for axes in grid.flat[len(groups) :]:
            axes.set_axis_off()
        for client, axes in enumerate(grid.flat[: len(groups)]):
            for other in range(len(groups)):
                if other != client:
                    line = history[:, client, other]
                    axes.plot(kept["after_rounds"], line, color=COLOURS[groups[other]], linewidth=0.9)
            axes.set_title(f"client {client}: trains on {groups[client]}, aims at {groups[aims[client]]}", fontsize=6)
            axes.tick_params(labelsize=6)
        names = sorted(set(groups))
        handles = [part.axes[0].plot([], [], color=COLOURS[name], label=str(name))[0] for name in names]
        part.legend(handles=handles, loc="outside lower center", ncols=len(names))

    return Panel(1.1 * height + 0.6, drawn)


def _has_met(rows: Sequence[Sequence[float]]) -> bool:
    return any(value for receiver, row in enumerate(rows) for giver, value in enumerate(row) if giver != receiver)


def _curves(case: Setting, variants: Mapping[str, MethodConfig], scale: str, results: Results) -> dict[str, Points]:
    """Return the accuracy over rounds of those variants that are computed."""
    cells = {name: Cell(case, variant, scale) for name, variant in variants.items()}
    return {name: results.curve(cell) for name, cell in cells.items() if results.all_seeds(cell)}


def _row_of_axes(part: SubFigure, number: int) -> list[Axes]:
    return list(part.subplots(1, number, squeeze=False)[0])


def _plot(axes: Axes, curves: Mapping[str, Points], title: str, looks: Sequence[tuple[str, str]] = ()) -> None:
    """Draw accuracy over rounds; a point without a value is left out."""
    styles = looks or [(colour, "-") for colour in COLOURS[: len(curves)]]
    for (name, points), (colour, dash) in zip(curves.items(), styles, strict=True):
        known = [(x, y) for x, y in points if y is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], color=colour, linestyle=dash, label=name)
    _name(axes, title, UPDATE, ACCURACY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _name(axes: Axes, title: str, x_words: str, y_words: str) -> None:
    axes.set_title(title, fontweight="bold", loc="left")
    axes.set_xlabel(x_words)
    axes.set_ylabel(y_words)
    axes.grid(visible=True)
