"""What pages say of the features scale: who wins where, every method's scores, and how settings were chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill

from experiments.iclr2021.features.cells import (
    CONTENDERS,
    REGIMES,
    TUNING_REGIMES,
    TUNING_SEEDS,
    Contender,
    queue,
)
from experiments.iclr2021.features.standings import FEDFOMO, OWN, PLUS, REFERENCE, RIVALS, Standing, standings
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.paired import Lead, Outcome, Verdict

FOLDER = "features"
MISSING = "–"
NOTHING = "Nothing has been computed yet."
RULE = """\
One seed gives every method the same clients, start and draws; a lead is the mean over clients of the difference in
accuracy, and ± is half of its 95 % t interval over seeds. *Even*: the interval lies within one point on either side.
*Ahead*, *behind*: a paired t test over seeds says so, after Holm's correction for all rivals in the row. A regime is
*won* by whoever is ahead of every rival, *lost* by whoever is behind any, and even where nobody is ahead and all is
decided; else it is open. Accuracy is the mean of the last five readings, one every other round; with ten of 100 clients
in a round, it is the last reading, of all."""
WORDS: dict[Outcome, str] = {"win": "wins", "loss": "loses", "even": "even", "open": "open"}


FRONT = (
    *("cifar10-ood-d5", "cifar100-ood-d5", "cifar10-pairs-ood", "cifar10-latent-d2", "cifar10-latent-d5"),
    *("cifar100-latent-d5", "cifar10-concept-d2", "cifar10-dirichlet", "cifar10-pathological-k100", "cifar10-iid"),
)
"""Regimes of the short table, which has one of each kind."""


def headline(store: Store) -> str:
    """Return the first table: a line for every regime, with what FedFomo and FedFomo+ come to."""
    found = standings(store)
    if not found:
        return NOTHING
    lines = [
        "| regime | clients that can tell | seeds | FedFomo | best rival | lead | FedFomo's verdict | FedFomo+ | lead |"
        " its verdict |",
        "| --- | ---: | ---: | ---: | --- | ---: | --- | ---: | ---: | --- |",
        *map(_headline_row, found),
    ]
    return "\n".join(lines) + "\n\n" + _wrapped(_summary(found))


def front(store: Store) -> str:
    """Return a shorter table: some regimes, the two leads, and what all regimes come to."""
    found = standings(store)
    if not found:
        return NOTHING
    shown = sorted((one for one in found if one.regime.name in FRONT), key=lambda one: FRONT.index(one.regime.name))
    lines = [
        "| regime | FedFomo | best rival | lead | FedFomo+ | lead |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
        *(f"| {' | '.join(_entries(one))} |" for one in shown),
    ]
    return "\n".join(lines) + "\n\n" + _wrapped(_summary(found))


def _entries(one: Standing) -> list[str]:
    entries = [one.regime.label, f"{one.mean(FEDFOMO):.1f}", one.rival(FEDFOMO), _lead(one, FEDFOMO)]
    return [*entries, *((f"{one.mean(PLUS):.1f}", _lead(one, PLUS)) if one.leads(PLUS) else (MISSING, MISSING))]


def _lead(one: Standing, method: str) -> str:
    result = one.outcome(method)
    words = WORDS[result]
    return f"{one.leads(method)[one.best_rival(method)]}, {f'**{words}**' if result != 'open' else words}"


def _summary(found: Sequence[Standing]) -> str:
    decided = {name: sum(one.outcome(name) != "open" for one in found) for name in (FEDFOMO, PLUS)}
    counts = Counter[Outcome](one.outcome(FEDFOMO) for one in found)
    plus = Counter[Outcome](one.outcome(PLUS) for one in found if one.leads(PLUS))
    summary = f"Rivals with two seeds or more are compared, of {len(RIVALS)} in all."
    summary += f" Decided for FedFomo in {decided[FEDFOMO]} of {len(found)} regimes: {_counted(counts)}."
    if plus:
        summary += f" Decided for FedFomo+ in {decided[PLUS]} of {sum(plus.values())}: {_counted(plus)}."
    if len({one.seeds for one in found}) > 1:
        summary += (
            " Regimes that were open got further seeds first, which makes a verdict of theirs a little more likely than"
            " with a number of seeds that is fixed beforehand."
        )
    return summary


def _wrapped(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _counted(counts: Counter[Outcome]) -> str:
    named: dict[Outcome, str] = {"win": "won", "loss": "lost", "even": "even", "open": "open"}
    return ", ".join(f"{counts[outcome]} {word}" for outcome, word in named.items() if counts[outcome])


def _headline_row(one: Standing) -> str:
    entries = [
        one.regime.label,
        f"{one.informative:.3g} of {one.regime.clients}",
        str(one.seeds),
        f"{one.mean(FEDFOMO):.1f}",
        one.rival(FEDFOMO),
        str(one.leads(FEDFOMO)[one.best_rival(FEDFOMO)]),
        _said(one.verdicts(FEDFOMO), one.outcome(FEDFOMO)),
    ]
    leads = one.leads(PLUS)
    if leads:
        over = leads[one.best_rival(PLUS)]
        entries += [f"{one.mean(PLUS):.1f}", str(over), _said(one.verdicts(PLUS), one.outcome(PLUS))]
    else:
        entries += [MISSING] * 3
    return f"| {' | '.join(entries)} |"


def _said(stands: dict[str, Verdict], result: Outcome) -> str:
    """Say what a regime comes to, and how many rivals a method is ahead of, even with and behind."""
    counts = Counter[str](stands.values())
    parts = [f"{counts[word]} {word}" for word in ("ahead", "even", "behind", "open") if counts[word]]
    words = WORDS[result]
    return f"{f'**{words}**' if result != 'open' else words}: {', '.join(parts)}"


def progress(store: Store) -> str:
    """Say how many cells are computed."""
    cells = queue()
    done = sum(len(store.lines(name)) for name in REGIMES)
    trials = sum(len(contender.grid) for contender in CONTENDERS.values()) * len(TUNING_REGIMES) * len(TUNING_SEEDS)
    tried = sum(mean is not None for contender in CONTENDERS.values() for _, mean in store.means(contender))
    return _wrapped(
        f"{done:,} of {len(cells):,} cells on features are computed, up to ten seeds of {len(CONTENDERS)} methods in"
        f" {len(REGIMES)} regimes; {tried} of {trials // len(TUNING_SEEDS)} settings are tried. What is not computed is"
        " not shown."
    )


def page(store: Store) -> str:
    """Return the page of the features scale."""
    parts = [
        "# Random-patch features: every method, several seeds",
        _wrapped(
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
        parts += [f"## {one.regime.label}", regime_table(one)]
    return "\n\n".join(parts) + "\n"


def _tuning_words() -> str:
    regimes = ", ".join(regime.label for regime in TUNING_REGIMES)
    seeds = " and ".join(map(str, TUNING_SEEDS))
    return _wrapped(
        f"Three settings for every method, with seeds {seeds}, which are reported nowhere, on {regimes}. The highest"
        " mean accuracy on clients' validation data chooses, for all regimes; test data choose nothing. Methods without"
        " an option of their own choose a learning rate, the others an option at the paper's rate of 0.1. FedFomo with"
        " more downloads takes the choice of n = 5."
    )


def tuning(store: Store) -> str:
    """Return a table of what was tried; the choice is bold."""
    lines = ["| method | settings, with validation accuracy in % |", "| --- | --- |"]
    for contender in CONTENDERS.values():
        means = store.means(contender)
        if contender.tuned_as is None and any(mean is not None for _, mean in means):
            lines.append(f"| {contender.label} | {'; '.join(_tried(store, contender))} |")
    return "\n".join(lines) if len(lines) > 2 else NOTHING


def _tried(store: Store, contender: Contender) -> Iterable[str]:
    chosen = {**store.choice(contender).options} if store.is_tuned(contender) else None
    for choice, mean in store.means(contender):
        text = f"{choice}: {MISSING if mean is None else f'{mean:.2f}'}"
        is_chosen = chosen is not None and {**choice.options, **contender.fixed} == chosen
        is_chosen = is_chosen and choice.learning_rate == store.choice(contender).learning_rate
        yield f"**{text}**" if is_chosen else text


def regime_table(one: Standing) -> str:
    """Return every method's scores in a regime, and FedFomo's and FedFomo+'s leads over it."""
    lines = [
        "| method | seeds | accuracy | last reading | FedFomo leads by | stands | FedFomo+ leads by | stands |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    leads = {name: one.leads(name) for name in (FEDFOMO, PLUS)}
    stands = {name: one.verdicts(name) for name in (FEDFOMO, PLUS)}
    known = [name for name in (*OWN, *RIVALS, *REFERENCE) if one.lines.get(name)]
    for name in sorted(known, key=one.mean, reverse=True):
        entries = [CONTENDERS[name].label, str(len(one.lines[name]))]
        entries += [_mean(one.means(name)), _mean(one.means(name, last=True))]
        for mine in (FEDFOMO, PLUS):
            its = leads[mine].get(name)
            entries += [str(its) if its else MISSING, stands[mine].get(name, MISSING)]
        lines.append(f"| {' | '.join(entries)} |")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


SHOWN = ("local", "fedavg", "fedavg-finetuned", "cfl", PLUS)
"""Rivals of the picture."""
LINEAR = 3.0
"""Points up to which the picture's axis is linear."""


def draw(store: Store, path: Path) -> bool:
    """Draw FedFomo's leads over some rivals in every regime, with intervals; tell whether there was anything."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from experiments.iclr2021.figures import STYLE, WIDTH, draw_leads

    found = standings(store)
    if not found:
        return False
    with rc_context(STYLE):
        drawing = Figure(figsize=(WIDTH, 0.42 * len(found) + 1.1), layout="constrained")
        axes = drawing.subplots()
        draw_leads(axes, 1.0, {CONTENDERS[name].label: _leads_over(found, name) for name in SHOWN}, gap=0.14)
        axes.set_xscale("symlog", linthresh=LINEAR)
        axes.set_xticks([-10, -3, -1, 0, 1, 3, 10, 30, 60], ["−10", "−3", "−1", "0", "1", "3", "10", "30", "60"])
        axes.set_yticks(range(len(found)), [one.regime.label for one in found])
        axes.invert_yaxis()
        axes.set_xlabel(
            "lead of FedFomo (n = 5) in points, with 95 % intervals over seeds; to the left the other is ahead"
        )
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, format="svg", metadata={"Date": None})
    return True


def _leads_over(found: Sequence[Standing], name: str) -> list[Lead | None]:
    """Return FedFomo's lead over a rival in every regime."""
    return [_over_plus(one) if name == PLUS else one.leads(FEDFOMO).get(name) for one in found]


def _over_plus(one: Standing) -> Lead | None:
    against = one.leads(PLUS).get(FEDFOMO)
    return None if against is None else Lead(tuple(-value for value in against.values))
