"""The order in which everything is computed: what matters most first, so that it can be stopped at any time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from experiments.iclr2021.paper_tables import (
    AS_CODED,
    AUTHORS_OPTIONS,
    CFL,
    CONTROL_METHODS,
    DITTO,
    EXTRA_METHODS,
    FEDAVG,
    FEDPROX,
    FIGURES,
    FINE_TUNED,
    FOMO_5,
    FOMO_10,
    LATENT_5,
    LG_FEDAVG,
    LOCAL,
    LOCAL_BEST,
    MANY_CLIENT_SETTINGS,
    OOD_5,
    ORACLE,
    PAPER_METHODS,
    PFEDME,
    TABLES,
    MethodConfig,
)
from experiments.iclr2021.settings import MANY_CLIENTS, Cell, Setting

REPEATED = ("fedfomo", "local", "fedavg")
"""Methods that figures have first, and whose runs are repeated with further seeds before anybody else's."""


@dataclass(frozen=True)
class Stage:
    """A part of the queue."""

    title: str
    cells: tuple[Cell, ...]


def stages() -> list[Stage]:
    """Return the queue; no cell is in it twice."""
    core = (FOMO_5, FOMO_10, LOCAL, FEDAVG)
    # Foreign targets before the rivals at home: that is where the paper's gain is largest.
    first = (
        *_cells(LATENT_5, (*core, FINE_TUNED), "paper"),
        *_cells(OOD_5, (*core, ORACLE), "paper"),
        *_cells(LATENT_5, (ORACLE, CFL, LG_FEDAVG, FEDPROX, PFEDME, DITTO), "paper"),
    )
    second = tuple(
        cell
        for case in (MANY_CLIENT_SETTINGS["CIFAR-10"], MANY_CLIENT_SETTINGS["MNIST"])
        for cell in _cells(case, core, "paper")
    )
    # Five distributions first: that is where the ablations are.
    third = (
        *_cells(LATENT_5, (*PAPER_METHODS, LOCAL_BEST), "lite"),
        *_cells(LATENT_5, AUTHORS_OPTIONS, "lite"),
        *_cells(OOD_5, (*PAPER_METHODS, LOCAL_BEST), "lite"),
        *TABLES["table2"].target.cells("lite"),
    )
    figures = [cell for figure in FIGURES.values() for cell in figure.cells("lite")]
    crowded = [
        cell for figure in FIGURES.values() for cell in figure.cells("paper") if cell.case.clients == MANY_CLIENTS
    ]
    drawn, curves = (tuple(cell for cell in cells if cell.variant.method in REPEATED) for cells in (figures, crowded))
    # Every figure has something to show before any of them has everything.
    fourth = (
        *(cell for cell in drawn if cell.case.dataset == LATENT_5.dataset),
        *_cells(replace(LATENT_5, clients=MANY_CLIENTS), (FOMO_5, LOCAL, FEDAVG), "paper"),
        *drawn,
    )
    fifth = (
        *(cell for case in MANY_CLIENT_SETTINGS.values() for cell in _cells(case, (FINE_TUNED,), "paper")),
        *_cells(LATENT_5, (LOCAL_BEST, AS_CODED), "paper"),
        *curves,
        *TABLES["everyone"].target.cells("paper"),
    )
    sixth = (
        *TABLES["authors"].target.cells("lite"),
        *TABLES["table1"].target.cells("lite"),
        *TABLES["table5"].target.cells("lite"),
        *_cells(Setting("cifar100", "ood", 5), PAPER_METHODS, "lite"),
        *TABLES["table6"].target.cells("lite"),
    )
    seventh = (
        *(cell for case in (LATENT_5, OOD_5) for cell in _cells(case, EXTRA_METHODS, "lite")),
        *_cells(OOD_5, CONTROL_METHODS, "lite"),
        *TABLES["augmentation"].target.cells("lite"),
        *figures,
        *(cell for table in TABLES.values() for cell in table.whole.cells("lite")),
    )
    so_far = (*first, *second, *third, *fourth, *fifth, *sixth, *seventh)
    rest = (
        *(cell for table in TABLES.values() for cell in table.target.cells("paper")),
        *(cell for table in TABLES.values() for cell in table.whole.cells("paper")),
        *(cell for figure in FIGURES.values() for cell in figure.cells("paper")),
    )
    planned = (
        ("full protocol: CIFAR-10, five latent distributions, in and out of distribution", first),
        ("full protocol: pathological split, 100 clients", second),
        ("a fifth of the data: tables 2 and 3 on CIFAR-10, the authors' options", third),
        ("figures, with FedFomo, Local and FedAvg: a fifth of the data, or 100 clients in full", fourth),
        ("full protocol: FedFomo alone and as coded; the rest of 100 clients, with FedFomo, Local and FedAvg", fifth),
        ("a fifth of the data: the authors' options, D = 2; tables 1, 3 on CIFAR-100, 4, 5, 6", sixth),
        ("a fifth of the data: the rest of the figures, and rows beyond the paper's", seventh),
        (
            "more seeds for FedFomo, Local and FedAvg",
            _repeated(cell for cell in so_far if cell.variant.method in REPEATED),
        ),
        ("full protocol: the rest of the tables and figures", rest),
        ("more seeds for everything", _repeated((*so_far, *rest))),
    )
    seen: set[str] = set()
    return [Stage(title, tuple(_unseen(cells, seen))) for title, cells in planned]


def _cells(case: Setting, variants: Iterable[MethodConfig], scale: str, seed: int = 0) -> list[Cell]:
    return [Cell(case, variant, scale, seed) for variant in variants]


def _repeated(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the same cells with further seeds, as many as the paper has runs; equal clients follow each other."""
    runs = _runs()
    by_case: dict[tuple[str, Setting], list[Cell]] = {}
    for cell in cells:
        by_case.setdefault((cell.scale, cell.case), []).append(cell)
    return tuple(
        replace(cell, seed=seed)
        for chosen in by_case.values()
        for seed in range(1, max(runs.values()))
        for cell in chosen
        if seed < runs[cell.case, cell.variant.name]
    )


def _runs() -> dict[tuple[Setting, str], int]:
    """Return how many runs there are to be of every variant on every case, by the table or figure that wants most."""
    runs: dict[tuple[Setting, str], int] = {}
    for target in (*(table.whole for table in TABLES.values()), *FIGURES.values()):
        for case, variant in target.pairs:
            key = case, variant.name
            runs[key] = max(target.runs, runs.get(key, 1))
    return runs


def _unseen(cells: Iterable[Cell], seen: set[str]) -> list[Cell]:
    new: list[Cell] = []
    for cell in cells:
        if cell.is_informative and cell.name not in seen:
            seen.add(cell.name)
            new.append(cell)
    return new
