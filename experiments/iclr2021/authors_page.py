"""What pages say of runs under the authors' protocol, beside ours and beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.iclr2021.authors_protocol import Protocol
from experiments.iclr2021.authors_runs import METHODS, RUNS, TOGETHER
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.paper_tables import FEDAVG, FEDPROX, FOMO_5, LOCAL, MANY_CLIENT_SETTINGS, SHARED, TABLES
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import DATA_WORDS, Cell, Setting, published
from experiments.iclr2021.unguarded import CASES, NAME
from experiments.markdown import MISSING, NOTHING
from fedfomo.core.round import sample_clients
from fedfomo.datasets.scenario_summary import PUBLISHED_EMD

LABELS = dict(zip(METHODS, (LOCAL, FEDAVG, FOMO_5), strict=True))
WORDS: dict[Protocol, str] = {
    Protocol(): "ours",
    Protocol.of(["same_ten"]): "the same ten in every round, and only they scored",
    Protocol.of(["classes_twice"]): "a client's two shards may be of one class",
    Protocol.of(["first_epoch"]): "an epoch for everybody first",
    Protocol.of(["as_coded"]): "L1, normalised P, averages as candidates, n counts the own model",
    Protocol.of(TOGETHER): "all of these, and diverged models kept",
    Protocol.of(["authors"]): "all of these, images varied and scaled as there, diverged models kept",
}
DATA = {"cifar10-features": "features", "cifar10": "images, CNN"}


def many_clients(folder: Path) -> str:
    """Return the table of 100 clients: protocols by methods, and the paper's numbers at the end."""
    lines = [*Store(folder).lines(RUNS), *_finished_cells(Results(folder.parent))]
    rows = [
        row
        for data in DATA
        for protocol in WORDS
        for ten in ((False, True) if protocol == Protocol() else (False,))
        if (row := _row(lines, data, protocol, ten))
    ]
    if not rows:
        return NOTHING
    case = MANY_CLIENT_SETTINGS["CIFAR-10"]
    papers = [published("table1", variant.name, case) for variant in LABELS.values()]
    labels = " | ".join(variant.label for variant in LABELS.values())
    head = [
        f"| protocol | data, rounds, seeds | {labels} | clients scored |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    last = f"| the paper prints | | {' | '.join(one.text if one else MISSING for one in papers)} | |"
    return "\n".join([*head, *rows, last])


def _finished_cells(results: Results) -> Iterator[Mapping[str, Any]]:
    """Yield our own runs on images, which are cells of table 1, as lines."""
    for method, variant in LABELS.items():
        cell = Cell(MANY_CLIENT_SETTINGS["CIFAR-10"], variant, "paper")
        for seed, result in results.all_seeds(cell).items():
            by_client = result.content["after_update"]["accuracy"]
            yield {
                "dataset": "cifar10",
                "protocol": Protocol().name,
                "method": method,
                "seed": seed,
                "rounds": result.content["config"]["rounds"],
                "accuracy": result.mean(),
                "by_client": by_client,
                "clients_scored": len(by_client),
            }


def _row(lines: Sequence[Mapping[str, Any]], data: str, protocol: Protocol, ten: bool) -> str | None:
    """Return the row of a protocol; with `ten`, of the ten clients alone whom the authors' draw would have kept."""
    known = [line for line in lines if (line["dataset"], line["protocol"]) == (data, protocol.name)]
    if not known:
        return None
    values = {method: [_accuracy(line, ten) for line in known if line["method"] == method] for method in METHODS}
    rounds = "/".join(map(str, sorted({line["rounds"] for line in known})))
    seeds = len({line["seed"] for line in known})
    scored = "10" if ten else "/".join(map(str, sorted({line["clients_scored"] for line in known})))
    entries = [f"{fmean(values[method]):.1f}" if values[method] else MISSING for method in METHODS]
    words = WORDS[protocol] + (", read of the ten who would always take part" if ten else "")
    return f"| {words} | {DATA[data]}, {rounds}, {seeds} | {' | '.join(entries)} | {scored} |"


def _accuracy(line: Mapping[str, Any], ten: bool) -> float:
    if not ten:
        return line["accuracy"]
    scores = line["by_client"]
    return 100 * fmean(scores[client] for client in sample_clients(len(scores), 0.1, line["seed"], 0))


def diverged(folder: Path) -> str:
    """Return the table of five distributions: what Local Training and FedAvg reach guarded and unguarded."""
    lines = Store(folder).lines(NAME)
    if not lines:
        return NOTHING
    rows = [
        "| setting | data, seed | method | diverged clients | ours: refused | theirs: kept | the paper prints |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    cases = {case.name: (case, words) for case, words in CASES.items()}
    for line in sorted(lines, key=lambda line: (list(cases).index(line["case"]), line["scale"] != "paper")):
        case, words = cases[line["case"]]
        paper = published("table3" if case.scenario == "ood" else "table2", line["method"], case)
        rows.append(
            f"| {words} | {DATA_WORDS[line['scale']]}, {line['seed']} | {LABELS[line['method']].label} |"
            f" {line['diverged']} | {line['guarded']:.1f} | {line['unguarded']:.1f} |"
            f" {paper.text if paper else MISSING} |"
        )
    return "\n".join(rows)


def contradictions() -> str:
    """Say, with the paper's own numbers, where its tables contradict each other or what is possible."""
    latent = {column.case.distributions or 0: column.case for column in TABLES["table2"].columns}
    foreign = TABLES["table3"].columns[0].case

    def paper(table: str, row: str, case: Setting) -> str:
        found = published(table, row, case)
        return MISSING if found is None else f"{found.mean:g}"

    pairs = [
        f"{paper('table2', variant.name, latent[5])} and {paper('table3', variant.name, foreign)} for {variant.label}"
        for variant in (FEDAVG, FEDPROX, SHARED)
    ]
    pulls = [
        f"{paper('table2', FEDPROX.name, latent[number])} against {paper('table2', FEDAVG.name, latent[number])} at"
        f" D = {number}"
        for number in (2, 4)
    ]
    most = 2 * (1 - 1 / 3)
    ten = [paper("table2", variant.name, latent[10]) for variant in (LOCAL, FOMO_5, FEDAVG)]
    lines = [
        "*Tables 2 and 3, global models.* One global model tested on the same fifteen test sets has the same mean,"
        f" whoever owns them. The paper prints {', '.join(pairs)}.",
        "*D = 10 of CIFAR-10.* In the code, groups are then the classes, so that one constant answer a client is right"
        f" in all of its test data. The paper prints {ten[0]} for Local Training and {ten[1]} for FedFomo; {ten[2]} for"
        " FedAvg is about what class 0 alone gives, the answer of a model that is no number.",
        "*EMD.* For D groups of whatever sizes, the mean L1 distance of labels is at most 2(1 − 1/D), which is"
        f" {most:.2f} for D = 3; the paper prints {PUBLISHED_EMD['cifar10'][3]:.2f}. So its figures are counted twice,"
        " as its code does.",
        f"*FedProx and FedAvg.* They are one code but for μ. The paper prints {' and '.join(pulls)}: a pull that holds"
        " clients back doubles the accuracy where FedAvg ran away.",
    ]
    return "\n".join(f"- {line}" for line in lines)
