"""Write the numbers of docs/fedfomo-plus.md and docs/fedfomo-plus-design.md, and a picture, from results alone.

    python -m experiments.fedfomo_plus.page

`python -m experiments.iclr2021 pages` does the same for these pages as for all others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from experiments.fedfomo_plus import costs, design_page, search
from experiments.fedfomo_plus.ablations import MAIN, differences
from experiments.iclr2021 import cnn_page
from experiments.iclr2021.cnn_standings import cnn_standings
from experiments.iclr2021.features.cells import CONTENDERS, REGIMES, Kind
from experiments.iclr2021.features.standings import standings
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.paired import MARGIN, Lead
from experiments.iclr2021.results import Results
from experiments.iclr2021.standings import FEDFOMO, PLUS, REFERENCE, Standing
from experiments.iclr2021.standings_tables import caveats, marked, tally
from experiments.markdown import MISSING, NOTHING, filled, signed, table, wrapped

PAGE, PICTURE = Path("docs/fedfomo-plus.md"), Path("docs/fedfomo-plus.svg")
RESULTS = Path("results")
POISON = ("10c", "10d", "10", "10b")
"""Files of the scorecard: FedFomo+ and FedFomo, each with three and with six attackers."""
ATTACKS = ("noise", "sign-flip", "×1e4", "1e30", "label-flip", "mixed")


def compared(results: Path) -> list[Standing]:
    """Return the regimes in which FedFomo+ has two seeds or more, with a rival."""
    return [one for one in standings(Store(results / "features")) if one.leads(PLUS)]


def claim(results: Path) -> str:
    """Return for each regime on features FedFomo+, the best rival, and the lead with its interval."""
    found = compared(results)
    return _claimed(found) + ("\n\n" + wrapped(caveats(found)) if found else "")


def claim_on_images(results: Path) -> str:
    """Return the same of the CNN."""
    return _claimed([one for one in cnn_standings(Results(results)) if one.leads(PLUS)])


def _claimed(found: Sequence[Standing]) -> str:
    if not found:
        return NOTHING
    rows: list[list[str]] = []
    for one in found:
        over = one.least_lead(PLUS)
        fomo = one.leads(PLUS).get(FEDFOMO)
        rows.append(
            [
                one.label,
                str(len(over.values)),
                f"{one.mean(PLUS):.1f}",
                one.rival(PLUS),
                f"{over}, {verdict(one)}",
                str(fomo) if fomo else MISSING,
                f"{one.mean(REFERENCE):.1f}" if one.has(REFERENCE) else MISSING,
                tally(one.verdicts(PLUS)),
            ]
        )
    head = ("regime", "seeds", "FedFomo+", "best rival", "lead", "over FedFomo", "oracle", "all rivals")
    return table(head, rows) + "\n\n" + wrapped(summary(found))


def full_protocol(results: Path) -> str:
    """Return the CNN's runs with all data, beside those with a fifth."""
    return cnn_page.full_protocol(Results(results), PLUS)


def verdict(one: Standing) -> str:
    """Say what a regime comes to for FedFomo+; of an open one, whether it can be a point behind."""
    if one.outcome(PLUS) == "open" and not may_be_behind(one.least_lead(PLUS)):
        return "open, not a point behind"
    return marked(one.outcome(PLUS))


def may_be_behind(over: Lead) -> bool:
    """Tell whether the interval of a lead reaches a point below zero."""
    return over.mean - over.half_width <= -MARGIN


def summary(found: Sequence[Standing]) -> str:
    """Say in one paragraph what the table comes to."""
    counts = Counter(one.outcome(PLUS) for one in found)
    words = {"win": "wins {}", "even": "is even in {}", "open": "is open in {}", "loss": "loses {}"}
    said = ", ".join(text.format(counts[outcome]) for outcome, text in words.items() if counts[outcome])
    unsure = [f"{one.label} ({one.least_lead(PLUS)})" for one in found if may_be_behind(one.least_lead(PLUS))]
    return (
        f"FedFomo+ {said}. In {len(found) - len(unsure)} of {len(found)} regimes the 95 % interval of its lead over the"
        " best rival lies above −1 point." + (f" The others: {'; '.join(unsure)}." if unsure else "")
    )


KINDS: Mapping[Kind, str] = {
    "groups": "groups or skewed labels, targets like the training data",
    "foreign": "targets that differ from the training data",
    "concept": "groups that label in different ways",
    "iid": "all clients alike (IID)",
}


def guide(results: Path) -> str:
    """Return which method the results speak for, by kind of federation."""
    found = compared(results)
    rows = [
        _guided(kind, inside)
        for kind in KINDS
        if (inside := [one for one in found if REGIMES[one.regime].kind == kind])
    ]
    return (
        table(("your clients", "regimes", "FedFomo+ over the best rival", "take"), rows, words=4) if rows else NOTHING
    )


def _guided(kind: Kind, inside: Sequence[Standing]) -> list[str]:
    leads = [one.least_lead(PLUS) for one in inside]
    low, high = signed(min(over.mean for over in leads)), signed(max(over.mean for over in leads))
    better = Counter(
        one.labels[one.best_rival(PLUS)]
        for one in inside
        if one.best_rival(PLUS) in one.close_behind(PLUS) or one.verdicts(PLUS)[one.best_rival(PLUS)] == "behind"
    )
    advice = "FedFomo+"
    if kind == "iid" and max(over.mean for over in leads) < 0:
        advice = "FedAvg: there is nothing to personalise, and it needs a fifth of the bandwidth down"
    elif better and sum(better.values()) == len(inside):
        advice = f"{' or '.join(better)}, which is a little better, or FedFomo+"
    elif better:
        advice += f" (in {sum(better.values())} of them a little behind {' or '.join(better)})"
    return [KINDS[kind], str(len(inside)), low if low == high else f"{low} to {high}", advice]


def ablations(results: Path) -> str:
    """Return what the parts of FedFomo+ are worth: the difference that each change makes, on the same seeds."""
    return differences(search.lines(results / "fedfomo_plus" / "search.jsonl"), MAIN)


def poison(results: Path) -> str:
    """Return the honest clients' accuracy under every attack, beside that without the two defences."""
    rows: list[list[str]] = []
    for place in POISON:
        file = results / "trust" / f"{place}.json"
        if not file.exists():
            continue
        figure = json.loads(file.read_text(encoding="utf-8"))
        details, share = figure["details"], figure["fault"].split(" clients")[0]
        kinds = {"plus": ("FedFomo+", "fedfomo-plus"), "one_start": ("one start, no bound", "one start")}
        kinds["fedfomo"] = ("FedFomo", "fedfomo")
        for kind, (label, clean) in kinds.items():
            if kind in details:
                values = [details["clean"][clean], *(details[kind][attack] for attack in ATTACKS)]
                rows.append([share, label, *(f"{value:.1f}" for value in values), f"{details['clean']['local']:.1f}"])
    head = ("attackers", "method", "no attack", *ATTACKS, "alone")
    return table(head, rows, words=2) + "\n\n" + _held(results) if rows else NOTHING


def _held(results: Path) -> str:
    """Say whether FedFomo+ keeps the two promises of the scorecard, with intervals over seeds."""
    parts: list[str] = []
    for place in ("10c", "10d"):
        file = results / "trust" / f"{place}.json"
        if not file.exists():
            continue
        figure = json.loads(file.read_text(encoding="utf-8"))
        by_seed, plus = figure["details"]["by_seed"], figure["details"]["plus"]
        worst = min(plus, key=plus.__getitem__)
        gaps = {
            name: Lead(tuple(a - b for a, b in zip(by_seed[worst], by_seed[name], strict=True)))
            for name in ("fedfomo-plus", "local")
        }
        parts.append(
            f"{'Held' if figure['holds'] else '**Not held**'}: {figure['promise'].removesuffix(' (FedFomo+)')}. The"
            f" worst attack is {worst}: {gaps['fedfomo-plus']} points against no attack, {gaps['local']} against alone,"
            f" over {len(by_seed[worst])} seeds."
        )
    return wrapped(" ".join(parts))


def cost(results: Path) -> str:
    """Return bytes, gradients, evaluated models and time of a client and round."""
    lines = search.lines(results / "fedfomo_plus" / "costs.jsonl")
    rows: list[list[str]] = []
    for line in (line for line in lines if not line["private"]):
        times = line["client_rounds"] * line["model_bytes"]
        whole = next(
            (r for r in lines if (r["method"], r["regime"], r["private"]) == (FINE_TUNED, line["regime"], False)), line
        )
        rows.append(
            [
                line["regime"],
                LABELS[line["method"]],
                f"{line['bytes_down'] / times:.2f}",
                f"{line['bytes_up'] / times:.2f}",
                f"{line['gradients'] / whole['gradients']:.2f}",
                f"{line['judged']:.1f}",
                f"{line['seconds'] / whole['seconds']:.1f}",
            ]
        )
    head = ("regime", "method", "models down", "models up", "gradients", "evaluated models", "processor time")
    return table(head, rows, words=2) if rows else NOTHING


def privacy(results: Path) -> str:
    """Return what is left with privacy, at equal ε."""
    lines = search.lines(results / "fedfomo_plus" / "costs.jsonl")
    clear = {line["method"]: line["accuracy"] for line in lines if not line["private"] and line["regime"] == "D = 5"}
    rows = [
        [
            LABELS[line["method"]],
            f"{line['accuracy']:.1f}",
            f"{clear[line['method']]:.1f}",
            f"{line['epsilon_training']:.1f}",
            f"{line['epsilon_validation']:.1f}",
        ]
        for line in lines
        if line["private"]
    ]
    head = ("method", "accuracy", "without privacy", "ε of training records", "ε of validation records")
    return table(head, rows) if rows else NOTHING


FINE_TUNED = "fedavg-finetuned"
LABELS = {name: CONTENDERS["fedfomo-5" if name == "fedfomo" else name].label for name in costs.LOOKS}
BLOCKS: dict[str, Callable[[Path], str]] = {
    "claim": claim,
    "images": claim_on_images,
    "full": full_protocol,
    "guide": guide,
    "ablations": ablations,
    "poison": poison,
    "cost": cost,
    "privacy": privacy,
}
"""Blocks of the page, by their name."""


def draw(results: Path, path: Path) -> bool:
    """Draw FedFomo+'s leads over the best other method and over FedFomo; tell whether there was anything."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from experiments.iclr2021.figures import STYLE, WIDTH, draw_leads

    found = compared(results)
    if not found:
        return False
    with rc_context(STYLE):
        drawing = Figure(figsize=(WIDTH, 0.36 * len(found) + 1.1), layout="constrained")
        axes = drawing.subplots()
        series = {
            "over the best other method": [one.least_lead(PLUS) for one in found],
            "over FedFomo (n = 5)": [one.leads(PLUS).get(FEDFOMO) for one in found],
        }
        draw_leads(axes, MARGIN, series, gap=0.16)
        axes.set_yticks(range(len(found)), [one.label for one in found])
        axes.invert_yaxis()
        axes.set_xlabel("lead of FedFomo+ in points, with 95 % intervals over seeds; to the left the other is ahead")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        drawing.savefig(path, format="svg", metadata={"Date": None})
    return True


def pages() -> Mapping[Path, Mapping[str, Callable[[Path], str]]]:
    """Return the blocks of every page."""
    return {PAGE: BLOCKS, design_page.PAGE: design_page.BLOCKS}


def write(results: Path = RESULTS, picture: Path = PICTURE) -> list[Path]:
    """Write the pages and the picture."""
    written: list[Path] = []
    for page, blocks in pages().items():
        ready = {name: partial(block, results) for name, block in blocks.items()}
        page.write_text(filled(page.read_text(encoding="utf-8"), ready), encoding="utf-8")
        written.append(page)
    return [*written, picture] if draw(results, picture) else written


if __name__ == "__main__":
    for path in write():
        print(path)  # noqa: T201
