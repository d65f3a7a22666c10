"""Whether FedFomo finds the clients that a client should learn from: those that train on its target's distribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from statistics import fmean

from experiments.iclr2021.claims import FOMO
from experiments.iclr2021.paper_tables import TABLES, Column, Row
from experiments.iclr2021.results import Result, Results
from experiments.iclr2021.settings import DATA_WORDS, SHOWN, Cell
from experiments.markdown import NOTHING, signed

SETTINGS = {
    "table2": "CIFAR-10, latent distributions, {}",
    "table5": "CIFAR-100, latent distributions, {}",
    "table3": "{}, targets shuffled among clients",
    "table4": "{}, latent distributions, D = 5, private",
}
HEAD = """\
| setting | method | data, seeds | moved | by others | taken from them | by chance | affinity to them | to the rest |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


@dataclass(frozen=True)
class AffinityRecovery:
    """What clients made of others, and of those among them that train on their target's distribution."""

    moved: float  # % of all updates in which a client went anywhere
    others: float  # % of where clients went that they owe to others, not to their own training
    taken: float  # % of all that clients took from others that came from them
    chance: float  # % that would have, had a client taken as much from each other as from any
    towards: float  # mean affinity to them at the end
    elsewhere: float  # mean affinity to everybody else


def recovery_table(results: Results) -> str:
    """Return a table of all settings with latent distributions, as far as they are computed."""
    lines = [
        line
        for name, words in SETTINGS.items()
        for column in TABLES[name].columns
        for row in TABLES[name].rows
        if row.variant in FOMO
        for line in _lines(words.format(column.heading), row, column, results)
    ]
    return "\n".join([HEAD, *lines]) if lines else NOTHING


def _lines(where: str, row: Row, column: Column, results: Results) -> Iterator[str]:
    for scale in SHOWN:
        runs = results.all_seeds(Cell(row.case_in(column), row.variant, scale)).values()
        found = [one for one in map(affinity_recovery_of, runs) if one is not None]
        if found:
            *shares, towards, elsewhere = (fmean(values) for values in zip(*map(astuple, found), strict=True))
            numbers = [f"{share:.1f} %" for share in shares] + [signed(towards, 2), signed(elsewhere, 2)]
            yield f"| {' | '.join((where, row.label, f'{DATA_WORDS[scale]}, {len(found)}', *numbers))} |"


def affinity_recovery_of(run: Result) -> AffinityRecovery | None:
    """Return what a run affinity_recovery_of; nothing, if nobody took anything from anybody else."""
    groups, targets = run.content["groups"], run.content["targets"]
    affinity = run.content["affinity"]["matrices"][-1]
    moves = in_all = from_them = by_chance = 0.0
    towards: list[float] = []
    elsewhere: list[float] = []
    for client, taken in enumerate(run.content["taken"]):
        others = set(range(len(groups))) - {client}
        helpers = {other for other in others if groups[other] == groups[targets[client]]}
        towards += (affinity[client][other] for other in helpers)
        elsewhere += (affinity[client][other] for other in others - helpers)
        moves += sum(taken)  # what is taken in an update adds up to 1, or to 0 if the client stays where it is
        total = sum(taken[other] for other in others)
        in_all += total
        from_them += sum(taken[other] for other in helpers)
        by_chance += total * len(helpers) / len(others)
    if not in_all:
        return None
    updates = len(groups) * run.content["config"]["rounds"]  # in the first round there was none; one came at the end
    return AffinityRecovery(
        100 * moves / updates,
        100 * in_all / moves,
        100 * from_them / in_all,
        100 * by_chance / in_all,
        fmean(towards),
        fmean(elsewhere),
    )
