"""Write the numbers of docs/fedfomo-plus.md, and its picture, from files of results alone.

    python -m experiments.fedfomo_plus.page

`python -m experiments.iclr2021 pages` does the same for this page as for all others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.fedfomo_plus import costs, search
from experiments.fedfomo_plus.variants import BESIDE, SHIPPED, VARIANTS
from experiments.iclr2021.cnn_standings import cnn_standings
from experiments.iclr2021.features.cells import CONTENDERS
from experiments.iclr2021.features.standings import standings
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.paired import MARGIN, Lead, lead
from experiments.iclr2021.results import Results
from experiments.iclr2021.standings import FEDFOMO, PLUS, REFERENCE, Standing
from experiments.iclr2021.standings_tables import tally

PAGE, PICTURE = Path("docs/fedfomo-plus.md"), Path("docs/fedfomo-plus.svg")
RESULTS = Path("results")
BLOCK = re.compile(r"<!-- begin ([a-z]+) -->\n.*?<!-- end \1 -->", re.DOTALL)
MISSING = "–"
NOTHING = "Nothing of this has been computed yet."
ATTACKS = ("noise", "sign-flip", "×1e4", "1e30", "label-flip", "mixed")
ORDINARY = ("latent", "pairs", "dirichlet", "pathological")


def signed(value: float) -> str:
    """Write a difference with its sign; what rounds to nothing has none."""
    text = f"{value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table in Markdown; the first columns are words, the others numbers."""
    marks = ["---" if place < words else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rows))


def compared(results: Path) -> list[Standing]:
    """Return the regimes in which FedFomo+ has two seeds or more, with a rival."""
    return [one for one in standings(Store(results / "features")) if one.leads(PLUS)]


def claim(results: Path) -> str:
    """Return for each regime on features FedFomo+, the best other method, and the lead with its interval."""
    return _claimed(compared(results))


def claim_on_images(results: Path) -> str:
    """Return the same of the CNN."""
    return _claimed([one for one in cnn_standings(Results(results)) if one.leads(PLUS)])


def _claimed(found: Sequence[Standing]) -> str:
    if not found:
        return NOTHING
    rows: list[list[str]] = []
    for one in found:
        over, stands = one.least_lead(PLUS), one.verdicts(PLUS)
        fomo = one.leads(PLUS).get(FEDFOMO)
        rows.append(
            [
                one.label,
                str(len(over.values)),
                f"{one.mean(PLUS):.1f}",
                one.rival(PLUS),
                f"**{over}**",
                said(over, stands[one.best_rival(PLUS)]),
                str(fomo) if fomo else MISSING,
                f"{one.mean(REFERENCE):.1f}" if one.has(REFERENCE) else MISSING,
                tally(stands),
            ]
        )
    head = ("regime", "seeds", "FedFomo+", "best other", "lead", "that is", "over FedFomo", "oracle", "all others")
    return table(head, rows) + "\n\n" + summary(found)


def said(over: Lead, verdict: str) -> str:
    """Say how FedFomo+ stands against one other, in the words of the claim."""
    if verdict == "open" and over.mean - over.half_width > -MARGIN:
        return "open, not a point behind"
    return verdict


def is_unsure(over: Lead) -> bool:
    """Tell whether FedFomo+ may be a point behind, or more, without being so in the mean."""
    return over.mean - over.half_width <= -MARGIN <= over.mean


def summary(found: Sequence[Standing]) -> str:
    """Say in one paragraph what the table comes to."""
    leads = {one.label: one.least_lead(PLUS) for one in found}
    stands = {one.label: one.verdicts(PLUS)[one.best_rival(PLUS)] for one in found}
    safe = [name for name, over in leads.items() if over.mean - over.half_width > -MARGIN or stands[name] == "ahead"]
    behind = [f"{name} ({leads[name]})" for name in leads if stands[name] == "behind"]
    unsure = [f"{name} ({leads[name]})" for name in leads if name not in safe and stands[name] != "behind"]
    text = (
        f"Against the best other method FedFomo+ is ahead in {sum(v == 'ahead' for v in stands.values())} of"
        f" {len(found)} regimes. In {len(safe)} of {len(found)} the 95 % interval of its lead lies above −1 point."
    )
    if behind:
        text += f" It is behind in: {'; '.join(behind)}."
    if unsure:
        text += f" Seeds do not decide whether it is a point behind in: {'; '.join(unsure)}."
    return text


def guide(results: Path) -> str:
    """Return which method the table speaks for, by kind of federation."""
    kinds: dict[str, Callable[[str], bool]] = {
        "groups or skewed labels, targets like the training data": lambda name: (
            "ood" not in name and any(word in name for word in ORDINARY)
        ),
        "targets that differ from the training data": lambda name: "ood" in name,
        "groups that label in different ways": lambda name: "concept" in name,
        "all clients alike (IID)": lambda name: name.endswith("iid"),
    }
    rows: list[list[str]] = []
    for kind, fits in kinds.items():
        inside = [one for one in compared(results) if fits(one.regime)]
        if inside:
            rows.append(_guided(kind, inside))
    return (
        table(("your clients", "regimes", "FedFomo+ over the best other", "take"), rows, words=4) if rows else NOTHING
    )


def _guided(kind: str, inside: Sequence[Standing]) -> list[str]:
    leads = [(one.least_lead(PLUS), one.best_rival(PLUS)) for one in inside]
    low, high = min(over.mean for over, _ in leads), max(over.mean for over, _ in leads)
    behind = sorted({CONTENDERS[name].label for over, name in leads if over.mean < -MARGIN})
    level = sorted({CONTENDERS[name].label for over, name in leads if is_unsure(over)} - set(behind))
    simpler = kind.startswith("all clients alike") and high < 0
    advice = "FedFomo+" + (f"; {', '.join(behind)} where the table says so" if behind else "")
    advice += f"; or {', '.join(level)}, where seeds do not decide" if level else ""
    if simpler:
        advice = "FedAvg: there is nothing to personalise, and it needs a fifth of the bandwidth down"
    span = signed(low) if signed(low) == signed(high) else f"{signed(low)} to {signed(high)}"
    return [kind, str(len(inside)), span, advice]


def ablations(results: Path) -> str:
    """Return what every variant differs by from FedFomo+, on the same seeds."""
    lines = search.lines(results / "fedfomo_plus" / "search.jsonl")
    return _differences(lines, [*VARIANTS, *BESIDE], SHIPPED)


def earlier(results: Path) -> str:
    """Return the forms that were tried before, as differences from one start for all."""
    lines = search.lines(results / "fedfomo_plus" / "earlier.jsonl")
    names = list(dict.fromkeys(line["variant"] for line in lines))
    return _differences(lines, names, "one start for all, no bound on lengths (version 1)")


def _differences(lines: Sequence[dict[str, Any]], names: Sequence[str], to: str) -> str:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for line in lines:
        found.setdefault(line["variant"], {}).setdefault(line["regime"], {})[line["seed"]] = line["accuracy"]
    if to not in found:
        return NOTHING
    regimes = [regime for regime in search.REGIMES if regime in found[to]]
    rows = [[f"{to}, accuracy in %", *(f"{fmean(found[to][regime].values()):.1f}" for regime in regimes)]]
    for name in names:
        if name in found and name != to:
            entries = [_difference(found[name].get(regime, {}), found[to][regime]) for regime in regimes]
            if any(entry != MISSING for entry in entries):
                rows.append([name, *entries])
    seeds = ["seeds", *(str(len(found[to][regime])) for regime in regimes)]
    return table(("variant", *regimes), [*rows, seeds])


def _difference(one: dict[int, float], other: dict[int, float]) -> str:
    over = lead({n: [v / 100] for n, v in one.items()}, {n: [v / 100] for n, v in other.items()})
    return MISSING if over is None else signed(over.mean)


def version_3(results: Path) -> str:
    """Return the forms among which version 3 was chosen, under poison and on features."""
    lines = search.lines(results / "fedfomo_plus" / "version_3.jsonl")
    poisoned = {(one["form"], one["attack"]): one["accuracy"] for one in lines if "attack" in one}
    clean: dict[str, dict[str, dict[int, float]]] = {}
    for one in lines:
        if "regime" in one:
            clean.setdefault(one["form"], {}).setdefault(one["regime"], {})[one["seed"]] = one["accuracy"]
    attacks, regimes = (
        ("none", "1e30", "label-flip", "mixed"),
        ("D = 2", "D = 5", "foreign", "two classes", "Dirichlet"),
    )
    rows: list[list[str]] = []
    for form in dict.fromkeys(one["form"] for one in lines):
        figures = [f"{poisoned[form, attack]:.1f}" if (form, attack) in poisoned else MISSING for attack in attacks]
        before = clean["version 2"]
        figures += [_difference(clean.get(form, {}).get(name, {}), before.get(name, {})) for name in regimes]
        rows.append([form, *(figures if form != "version 2" else [*figures[: len(attacks)], *["0.0"] * len(regimes)])])
    return table(("form", "no attack", *attacks[1:], *regimes), rows) if rows else NOTHING


def budget(results: Path) -> str:
    """Say how many runs chose the form, and what they took."""
    folder = results / "fedfomo_plus"
    runs = [line for name in ("earlier", "search") for line in search.lines(folder / f"{name}.jsonl")]
    seeds = sorted({line["seed"] for line in runs})
    return (
        f"{len(runs)} runs on features, {sum(line['seconds'] for line in runs) / 60:.0f} minutes of one core, seeds"
        f" {' and '.join(map(str, seeds))}. The runs of the tables on versions, poison and the CNN come on top."
        if runs
        else NOTHING
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


def poison(results: Path) -> str:
    """Return the honest clients' accuracy under every attack, beside that without the two defences."""
    rows: list[list[str]] = []
    for place in ("10c", "10d", "10", "10b"):
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
    """Say whether FedFomo+ keeps the two promises of the scorecard."""
    parts: list[str] = []
    for place in ("10c", "10d"):
        file = results / "trust" / f"{place}.json"
        if file.exists():
            figure = json.loads(file.read_text(encoding="utf-8"))
            details, verdict = figure["details"], "Held" if figure["holds"] else "**Not held**"
            clean, worst = details["clean"], min(details["plus"].values())
            clean_gap, alone_gap = signed(worst - clean["fedfomo-plus"]), signed(worst - clean["local"])
            promise = figure["promise"].removesuffix(" (FedFomo+)")
            parts.append(f"{verdict}: {promise}. The worst attack: {clean_gap} to no attack, {alone_gap} to alone.")
    return " ".join(parts)


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
                f"{line['seconds'] / whole['seconds']:.2f}",
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
    "guide": guide,
    "ablations": ablations,
    "earlier": earlier,
    "version": version_3,
    "budget": budget,
    "cnn": cnn,
    "poison": poison,
    "cost": cost,
    "privacy": privacy,
}


def filled(text: str, results: Path) -> str:
    """Return the page with every block written anew."""
    return BLOCK.sub(
        lambda found: f"<!-- begin {found[1]} -->\n{BLOCKS[found[1]](results)}\n<!-- end {found[1]} -->", text
    )


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


def write(results: Path = RESULTS, page: Path = PAGE, picture: Path = PICTURE) -> list[Path]:
    """Write the page and its picture."""
    page.write_text(filled(page.read_text(encoding="utf-8"), results), encoding="utf-8")
    return [page, picture] if draw(results, picture) else [page]


if __name__ == "__main__":
    for written in write():
        print(written)  # noqa: T201
