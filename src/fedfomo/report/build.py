"""From what a run left behind to the facts of its report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from fedfomo.report import intervals
from fedfomo.report.about import about_run
from fedfomo.report.data import (
    ClientFacts,
    FinalResult,
    MethodFacts,
    ReportData,
    ReportInput,
    RoundFacts,
)
from fedfomo.report.history import curves, history, thinned
from fedfomo.report.intervals import Estimate
from fedfomo.report.ordering import order_by_likeness, order_rows
from fedfomo.report.text import NextStep, Unit, contributors_of, headline, lede, next_step, site_sentence, title_of

MATRIX_LIMIT = 300  # clients; a dense matrix of more is no smaller than the judgements that it is made of


def build_report_data(source: ReportInput) -> ReportData:
    """Compute everything that a report shows."""
    local = source.ended.get("local")
    seeds = _common_seeds(source)
    methods = [_method(name, ended, local, seeds, source) for name, ended in _local_first(source.ended).items()]
    rounds, health = history(source)
    shown = thinned(rounds)
    own = next((facts for facts in methods if facts.method == source.method), None)
    alone = next((facts for facts in methods if facts.method == "local"), None)
    ended = source.ended.get(source.method)
    examined = ended.examples if ended else None
    receivers, givers = _orders(source)
    unit = Unit(source.metric, _is_share(source))
    return ReportData(
        title=source.title,
        method=source.method,
        metric=source.metric,
        is_share=unit.is_share,
        word=source.word,
        titles={name: title_of(name) for name in (*source.ended, source.method)},
        verdict=_verdict(source, own, unit),
        lede="" if own is None else lede({m.method: m.mean for m in methods}, own.mean_gain, own.method, seeds, unit),
        about=about_run(source),
        seed=source.seed,
        seeds=seeds,
        rounds_planned=source.rounds_planned,
        is_finished=ended is not None,
        clients=source.clients,
        label_names=_class_names(source.clients),
        methods=methods,
        rounds=shown,
        is_thinned=shown != rounds,
        curves=curves(source),
        affinity=source.affinity if len(source.clients) <= MATRIX_LIMIT else None,
        mixing=source.mixing if len(source.clients) <= MATRIX_LIMIT else None,
        gives=_others([list(column) for column in zip(*source.mixing, strict=True)], rounds) if source.mixing else None,
        takes=_others(source.mixing, rounds) if source.mixing else None,
        cross=examined.cross if examined else None,
        why_not_crossed=_why_not(ended),
        receivers=receivers,
        givers=givers,
        sentences=_sentences(source, own, alone, unit),
        next_steps=_next_steps(source, own, unit),
        advice=source.advice,
        health=health,
        privacy=source.privacy,
        reproduce=source.reproduce,
    )


def _local_first(ended: Mapping[str, FinalResult]) -> dict[str, FinalResult]:
    rank = {"local": 0, "fedavg": 1}
    return {name: ended[name] for name in sorted(ended, key=lambda name: rank.get(name, 2))}


def _common_seeds(source: ReportInput) -> list[int]:
    """Return the seeds with which every method has ended: means of other seeds could not be compared."""
    known = [{seed for seed, mean in e.seed_means.items() if math.isfinite(mean)} for e in source.ended.values()]
    common = set[int]() if not known else known[0].intersection(*known[1:])
    return sorted(common) or [source.seed]


def _method(
    name: str, ended: FinalResult, local: FinalResult | None, seeds: Sequence[int], source: ReportInput
) -> MethodFacts:
    clients = sorted(ended.scores)
    scores = [_estimate(ended, client) for client in clients]
    gains: list[Estimate | None] = [None] * len(clients)
    if local is not None and name != "local":
        gains = [_gain(ended, local, client) for client in clients]
    known = [gain for gain in gains if gain is not None]
    helped, harmed = sum(gain.is_above_zero for gain in known), sum(gain.is_below_zero for gain in known)
    values = [score.value for score in scores if score is not None]
    means = [mean for seed in seeds if math.isfinite(mean := ended.seed_means.get(seed, math.nan))] or values
    gaps = [gap for seed in seeds for gap in ended.seed_gains.get(seed, [])] or [gain.value for gain in known]
    by_class = ended.examples.by_class if ended.examples and source.privacy is None else None
    return MethodFacts(
        method=name,
        title=title_of(name),
        scores=scores,
        gains=gains,
        mean=fmean(means) if means else math.nan,
        mean_gain=intervals.of_mean_gap(gaps) if known else None,
        helped=helped,
        harmed=harmed,
        undecided=len(known) - helped - harmed,
        bytes_moved=ended.bytes_moved,
        gradients=ended.gradients,
        by_class=by_class,
        further={
            name: fmean(ended.seed_metrics[seed][name] for seed in seeds) for name in _further(ended, source, seeds)
        },
    )


def _further(ended: FinalResult, source: ReportInput, seeds: Sequence[int]) -> list[str]:
    """Name the metrics beside the primary one that are known of all seeds."""
    known = [ended.seed_metrics.get(seed, {}) for seed in seeds]
    return [name for name in known[0] if name != source.metric and all(name in each for each in known)]


def _estimate(ended: FinalResult, client: int) -> Estimate | None:
    score = ended.scores[client]
    if score.num_examples == 0 or not math.isfinite(score.metric):
        return None
    if ended.examples is not None and ended.examples.resamples is not None:
        return intervals.of_resamples(score.metric, ended.examples.resamples[client])
    if ended.is_of_sets:
        return Estimate(score.metric, math.nan, math.nan)
    if ended.examples is not None:
        return intervals.of_mean(ended.examples.figures[client])
    if 0 <= score.metric <= 1:
        return intervals.of_share(score.metric, score.num_examples)
    return Estimate(score.metric, math.nan, math.nan)


def _gain(ended: FinalResult, local: FinalResult, client: int) -> Estimate | None:
    ours, theirs = _estimate(ended, client), _estimate(local, client)
    if ours is None or theirs is None:
        return None
    if ended.is_of_sets:
        resamples = [
            each.examples.resamples[client] for each in (ended, local) if each.examples and each.examples.resamples
        ]
        return intervals.of_resampled_difference(
            ours, theirs, [*zip(*resamples, strict=True)] if len(resamples) == 2 else []
        )
    if ended.examples is not None and local.examples is not None:
        return intervals.of_difference(ended.examples.figures[client], local.examples.figures[client])
    return intervals.of_unpaired_difference(ours, theirs)


def _is_share(source: ReportInput) -> bool:
    if any(ended.is_of_sets for ended in source.ended.values()):
        return False  # an AUC of 0.9 is no 90 % of anything
    ends = [score.metric for ended in source.ended.values() for score in ended.scores.values()]
    course: list[float | None] = [score["metric"] for line in source.lines for score in line["after_update"].values()]
    known = [value for value in (*ends, *course) if value is not None and math.isfinite(value)]
    return all(0 <= value <= 1 for value in known)


def _class_names(clients: Sequence[ClientFacts]) -> list[str]:
    return [str(label) for label in range(max((len(c.train_labels or []) for c in clients), default=0))]


def _why_not(ended: FinalResult | None) -> str:
    if ended is None:
        return "The run is not finished."
    if ended.examples is None:
        return "The run's models or data are not at hand, so they could not be tried on each other's targets."
    return ended.examples.why_not_crossed


def _others(rows: Sequence[Sequence[float]], rounds: Sequence[RoundFacts]) -> list[float]:
    """Add up what is off the diagonal, and share it out over the rounds."""
    return [(sum(row) - row[client]) / max(1, len(rounds)) for client, row in enumerate(rows)]


def _orders(source: ReportInput) -> tuple[list[int], list[int]]:
    matrix = source.affinity or source.mixing
    if matrix is None:
        everyone = list(range(len(source.clients)))
        return everyone, everyone
    if source.own_targets:
        order = order_by_likeness(matrix)
        return order, order
    # Receivers stand together by what they aim at, givers by what they have: that is not the same order.
    return order_rows(matrix), order_rows([list(column) for column in zip(*matrix, strict=True)])


def _verdict(source: ReportInput, own: MethodFacts | None, unit: Unit) -> str:
    if own is None:
        return f"Round {len(source.lines)} of {source.rounds_planned}: not finished"
    if own.mean_gain is None:
        return f"{title_of(own.method)} reaches {unit.score(own.mean)} on average"
    return headline(own.helped, own.undecided, own.harmed, own.mean_gain, source.word)


def _sentences(source: ReportInput, own: MethodFacts | None, local: MethodFacts | None, unit: Unit) -> list[str]:
    if own is None:
        return []
    names = [client.name for client in source.clients]
    return [
        site_sentence(
            names[client],
            local.scores[client] if local else None,
            own.scores[client],
            own.gains[client],
            contributors_of(source.mixing, names, client) if source.mixing else {},
            unit,
            source.clients[client].test,
        )
        for client in range(len(names))
    ]


def _next_steps(source: ReportInput, own: MethodFacts | None, unit: Unit) -> list[NextStep]:
    if own is None:
        return []
    return [
        next_step(own.scores[client], own.gains[client], unit, facts.test)
        for client, facts in enumerate(source.clients)
    ]
