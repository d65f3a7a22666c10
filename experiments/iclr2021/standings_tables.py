"""Tables and a picture of how methods stand: who wins where, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from experiments.iclr2021.paired import Lead, Outcome, Verdict
from experiments.iclr2021.standings import FEDFOMO, OWN, PLUS, REFERENCE, Standing
from experiments.markdown import MISSING, NOTHING, wrapped

WORDS: dict[Outcome, str] = {"win": "wins", "loss": "loses", "even": "even", "open": "open"}


def long_table(found: Sequence[Standing]) -> str:
    """Return a line for every regime, with what FedFomo and FedFomo+ come to against all rivals."""
    if not found:
        return NOTHING
    lines = [
        "| regime | informative clients | seeds | FedFomo | best rival | lead | FedFomo's verdict | FedFomo+ | lead |"
        " its verdict |",
        "| --- | ---: | ---: | ---: | --- | ---: | --- | ---: | ---: | --- |",
        *map(_long_row, found),
    ]
    return "\n".join(lines) + "\n\n" + wrapped(summary(found))


def short_table(found: Sequence[Standing]) -> str:
    """Return a line for every regime: the two leads, and what they come to."""
    if not found:
        return NOTHING
    lines = [
        "| regime | seeds | FedFomo | best rival | lead | FedFomo+ | lead |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
        *(f"| {' | '.join(_short_row(one))} |" for one in found),
    ]
    return "\n".join(lines)


def summary(found: Sequence[Standing]) -> str:
    """Say how often each method has won, lost, and neither."""
    said: list[str] = []
    for name, label in ((FEDFOMO, "FedFomo"), (PLUS, "FedFomo+")):
        if any(one.leads(name) for one in found):
            rivals = max(len(one.leads(name)) for one in found)
            said.append(f"{label}, with up to {rivals} rivals in each, {_counted(found, name)}")
    return f"Over all {len(found)} regimes: {'; '.join(said)}."


def caveats(found: Sequence[Standing]) -> str:
    """Say what "even" hides for FedFomo+, and what changes if only the last reading counts."""
    close = [one for one in found if one.close_behind(PLUS)]
    if not any(one.leads(PLUS) for one in found):
        return NOTHING
    largest = max((-lead.mean for one in close for lead in one.close_behind(PLUS).values()), default=0.0)
    text = (
        f"*Even* does not mean equal. In {len(close)} of {len(found)} regimes at least one rival is ahead of FedFomo+"
        f" by less than a point (at most {largest:.1f}), and not by chance."
        if close
        else "In no regime is a rival ahead of FedFomo+ by less than a point and not by chance."
    )
    return f"{text} By the last reading alone, FedFomo+ {_counted([one.by_last_reading() for one in found], PLUS)}."


def regime_table(one: Standing, with_last: bool = True) -> str:
    """Return every method's scores in a regime, and FedFomo's and FedFomo+'s leads over it."""
    head = ["method", "seeds", "accuracy", *(["last reading"] if with_last else [])]
    head += ["FedFomo leads by", "stands", "FedFomo+ leads by", "stands"]
    marks = ["---", *["---:"] * (3 if with_last else 2), "---:", "---", "---:", "---"]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(marks)} |"]
    leads = {name: one.leads(name) for name in (FEDFOMO, PLUS)}
    stands = {name: one.verdicts(name) for name in (FEDFOMO, PLUS)}
    known = [name for name in (*OWN, *one.rivals, REFERENCE) if one.has(name)]
    for name in sorted(known, key=one.mean, reverse=True):
        entries = [one.labels[name], str(one.seeds(name)), _mean(one.means(name))]
        entries += [_mean(one.means(name, last=True))] if with_last else []
        for mine in (FEDFOMO, PLUS):
            its = leads[mine].get(name)
            entries += [str(its) if its else MISSING, stands[mine].get(name, MISSING)]
        lines.append(f"| {' | '.join(entries)} |")
    return "\n".join(lines)


def _long_row(one: Standing) -> str:
    entries = [
        one.label,
        f"{one.informative:.3g} of {one.clients}",
        str(one.seeds()),
        f"{one.mean(FEDFOMO):.1f}",
        one.rival(FEDFOMO),
        str(one.least_lead(FEDFOMO)),
        _said(one.verdicts(FEDFOMO), one.outcome(FEDFOMO)),
    ]
    if one.leads(PLUS):
        entries += [f"{one.mean(PLUS):.1f}", str(one.least_lead(PLUS)), _said(one.verdicts(PLUS), one.outcome(PLUS))]
    else:
        entries += [MISSING] * 3
    return f"| {' | '.join(entries)} |"


def _short_row(one: Standing) -> list[str]:
    entries = [one.label, str(one.seeds()), f"{one.mean(FEDFOMO):.1f}", one.rival(FEDFOMO), _lead(one, FEDFOMO)]
    return [*entries, *((f"{one.mean(PLUS):.1f}", _lead(one, PLUS)) if one.leads(PLUS) else (MISSING, MISSING))]


def _lead(one: Standing, method: str) -> str:
    return f"{one.least_lead(method)}, {marked(one.outcome(method))}"


def marked(result: Outcome) -> str:
    """Spell out what a regime comes to; bold, if it is decided."""
    return WORDS[result] if result == "open" else f"**{WORDS[result]}**"


def _said(stands: Mapping[str, Verdict], result: Outcome) -> str:
    """Say what a regime comes to, and how many rivals a method is ahead of, even with and behind."""
    return f"{marked(result)}: {tally(stands)}"


def tally(stands: Mapping[str, Verdict]) -> str:
    """Count the rivals that a method is ahead of, even with, behind and undecided against."""
    counts = Counter[str](stands.values())
    return ", ".join(f"{counts[word]} {word}" for word in ("ahead", "even", "behind", "open") if counts[word])


def _counted(found: Sequence[Standing], method: str) -> str:
    counts = Counter[Outcome](one.outcome(method) for one in found if one.leads(method))
    named: dict[Outcome, str] = {"win": "wins", "even": "is even in", "loss": "loses", "open": "is open in"}
    return ", ".join(f"{word} {counts[outcome]}" for outcome, word in named.items() if counts[outcome])


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


SHOWN = ("local", "fedavg", "fedavg-finetuned", "cfl", PLUS)
"""Rivals of the picture."""
LINEAR = 3.0
"""Points up to which the picture's axis is linear."""


def draw(found: Sequence[Standing], path: Path) -> bool:
    """Draw FedFomo's leads over some rivals in every regime, with intervals; tell whether there was anything."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from experiments.iclr2021.figures import STYLE, WIDTH, draw_leads

    if not found:
        return False
    labels = {name: label for one in found for name, label in one.labels.items()}
    with rc_context(STYLE):
        drawing = Figure(figsize=(WIDTH, 0.42 * len(found) + 1.1), layout="constrained")
        axes = drawing.subplots()
        draw_leads(axes, 1.0, {labels[name]: _leads_over(found, name) for name in SHOWN if name in labels}, gap=0.14)
        axes.set_xscale("symlog", linthresh=LINEAR)
        axes.set_xticks([-10, -3, -1, 0, 1, 3, 10, 30, 60], ["−10", "−3", "−1", "0", "1", "3", "10", "30", "60"])
        axes.set_yticks(range(len(found)), [one.label for one in found])
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
