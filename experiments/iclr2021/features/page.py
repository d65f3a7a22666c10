"""What pages say of the features scale: who wins where, every method's scores, and how settings were chosen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from experiments.iclr2021 import standings_tables as tables
from experiments.iclr2021.features.cells import (
    CONTENDERS,
    REGIMES,
    TUNING_REGIMES,
    TUNING_SEEDS,
    WORTH,
    Contender,
    queue,
)
from experiments.iclr2021.features.standings import standings
from experiments.iclr2021.features.store import Store
from experiments.markdown import MISSING, NOTHING, wrapped

RULE = """\
One seed gives every method the same clients, start and draws. A lead is the mean over clients of the difference in
accuracy, in points; ± is half of its 95 % t interval over seeds. *Even*: the whole interval lies within one point of
zero; one point is our choice. *Ahead*, *behind*: a paired t test over seeds says so, after Holm's correction for all
rivals in the row (not for all rows together). A method *wins* a regime if it is ahead of every rival, and *loses* it if
it is behind any. A regime is *even* if nobody is ahead and every comparison is decided; else it is open. Accuracy is
the mean of the last five readings, one every other round; with ten of 100 clients in a round, it is the last reading,
of all clients. After an accuracy, ± is the standard deviation over seeds. All seeds share one set of test images:
intervals cover the split and the initial model, not the choice of test images."""

FRONT = (
    *("cifar10-ood-d5", "cifar100-ood-d5", "cifar10-pairs-ood", "cifar10-latent-d2", "cifar10-latent-d5"),
    *("cifar100-latent-d5", "cifar10-concept-d2", "cifar10-dirichlet", "cifar10-pathological-k100", "cifar10-iid"),
)
"""Regimes of the short table, which has one of each kind."""


def headline(store: Store) -> str:
    """Return the table of all regimes."""
    found = standings(store)
    return tables.long_table(found) + ("\n\n" + wrapped(tables.caveats(found)) if found else "")


def front(store: Store) -> str:
    """Return a shorter table: some regimes, the two leads, and what all regimes come to."""
    found = standings(store)
    if not found:
        return NOTHING
    shown = sorted((one for one in found if one.regime in FRONT), key=lambda one: FRONT.index(one.regime))
    return tables.short_table(shown) + "\n\n" + wrapped(f"{tables.summary(found)} {tables.caveats(found)}")


def progress(store: Store) -> str:
    """Say how many cells are computed."""
    cells = queue()
    done = sum(store.is_tuned(cell.contender) and store.has(cell) for cell in cells)
    settings = sum(len(contender.grid) + len(contender.further) for contender in CONTENDERS.values())
    tried = sum(mean is not None for contender in CONTENDERS.values() for _, mean in store.means(contender))
    return wrapped(
        f"{done:,} of {len(cells):,} cells on features are computed, up to ten seeds of {len(CONTENDERS)} methods and"
        f" variants in {len(REGIMES)} regimes; {tried} of {settings} settings are tried. What is not computed is not"
        " shown."
    )


def page(store: Store) -> str:
    """Return the page of the features scale."""
    parts = [
        "# Random-patch features: every method, several seeds",
        wrapped(
            "Real CIFAR-10 and CIFAR-100 images through fixed filters ([how]"
            "(../../experiments/iclr2021/features/README.md)) and a small perceptron. A run takes seconds, so that many"
            " seeds decide. The numbers stand beside those of the CNN and never in their place: features are fixed, so"
            " nothing that federated learning gains by learning features together can show."
        ),
        progress(store),
        "## Who wins where",
        RULE,
        headline(store),
        "![Leads](features.svg)",
        "## How settings were chosen",
        _tuning_words(),
        tuning(store),
    ]
    for one in standings(store):
        parts += [f"## {one.label}", tables.regime_table(one)]
    return "\n\n".join(parts) + "\n"


def _tuning_words() -> str:
    regimes = ", ".join(regime.label for regime in TUNING_REGIMES)
    seeds = " and ".join(map(str, TUNING_SEEDS))
    return wrapped(
        f"Five settings for every method, with seeds {seeds}, which are reported nowhere, on {regimes}. The highest"
        " mean accuracy on clients' validation data chooses among the first three, for all regimes; test data choose"
        " nothing. Methods without an option of their own choose a learning rate. The others choose an option, most of"
        " them at the paper's rate of 0.1. The last two settings were tried later. Where one of them is better than the"
        f" choice by {WORTH:g} points or more, the method with this setting is one more rival. FedFomo with more"
        " downloads takes the choice of n = 5. The two methods that are run with foreign targets only take the choice"
        " of their namesakes."
    )


def tuning(store: Store) -> str:
    """Return a table of what was tried; the choice is bold."""
    lines = ["| method | settings, with validation accuracy in % |", "| --- | --- |"]
    for contender in CONTENDERS.values():
        means = store.means(contender)
        if contender.grid and any(mean is not None for _, mean in means):
            lines.append(f"| {contender.label} | {'; '.join(_tried(store, contender))} |")
    return "\n".join(lines) if len(lines) > 2 else NOTHING


def _tried(store: Store, contender: Contender) -> Iterable[str]:
    chosen = {**store.choice(contender).options} if store.is_tuned(contender) else None
    for choice, mean in store.means(contender):
        text = f"{choice}: {MISSING if mean is None else f'{mean:.2f}'}"
        is_chosen = chosen is not None and {**choice.options, **contender.fixed} == chosen
        is_chosen = is_chosen and choice.learning_rate == store.choice(contender).learning_rate
        yield f"**{text}**" if is_chosen else text


def draw(store: Store, path: Path) -> bool:
    """Draw FedFomo's leads in every regime; tell whether there was anything to draw."""
    return tables.draw(standings(store), path)
