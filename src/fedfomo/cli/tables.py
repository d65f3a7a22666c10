"""What is shown in the terminal as tables and bars: methods side by side, who helps whom, ε, mixes of labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedfomo.io import read_lines

if TYPE_CHECKING:
    from fedfomo.runs.records import RunRecord

# The more a receiver took from a giver, the fuller and brighter the cell.
SHADES = ("grey11", "grey23", "grey39", "deep_sky_blue4", "deep_sky_blue3", "sky_blue1", "white")
LEGEND = """\
updated: after the last federated update; trained: after the last local training
p10: 10th percentile of clients; vs Local: % of clients better/worse than alone
↓ to clients, ↑ to the server, over the whole run; work: gradients computed, Local = 1"""
NAMED_RIVALS = 5  # more than that make a paragraph nobody reads
MOST_CLIENTS = 15  # of whom ε is shown; all are in the run's folder
MOST_ROUNDS = 6
LEVELS = "▁▂▃▄▅▆▇█"
NONE = "·"
MAP_LIMIT = 40  # clients; wider than that, no terminal shows the matrix


def comparison_table(records: Sequence[RunRecord]) -> Table:
    """Show methods as rows; figures are means over seeds of means over clients."""
    scale = 100.0 if _are_shares(records) else 1.0
    title = f"Test {records[0].metric}{' in %' if scale > 1 else ''}: mean over clients ± over seeds"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("method", no_wrap=True)
    for heading in ("updated", "trained", "worst", "p10", "vs Local", "MB ↓ ↑", "work"):
        table.add_column(heading, justify="right", no_wrap=True)
    by_method: dict[str, list[RunRecord]] = {}
    for record in records:
        by_method.setdefault(record.method, []).append(record)
    local = {record.seed: record for record in by_method.get("local", [])}
    best = max(fmean(r.summary().mean for r in runs) for runs in by_method.values())
    for method, runs in by_method.items():
        at_update = [run.summary(local.get(run.seed)) for run in runs]
        at_training = [run.summary(point="after_training") for run in runs]
        better = [s.share_better for s in at_update if s.share_better is not None]
        worse = [s.share_worse for s in at_update if s.share_worse is not None]
        against = f"{100 * fmean(better):.0f}/{100 * fmean(worse):.0f}" if method != "local" and better else ""
        bytes_down, bytes_up = fmean(r.traffic.bytes_down for r in runs), fmean(r.traffic.bytes_up for r in runs)
        work = fmean(run.gradients / local[run.seed].gradients if run.seed in local else 0.0 for run in runs)
        is_best = fmean(s.mean for s in at_update) == best
        table.add_row(
            method,
            _spread([s.mean for s in at_update], scale),
            _spread([s.mean for s in at_training], scale),
            _figure_of(fmean(s.worst for s in at_update), scale),
            _figure_of(fmean(s.tenth_percentile for s in at_update), scale),
            against,
            f"{bytes_down / 1e6:.0f} {bytes_up / 1e6:.0f}",
            f"{work:.1f}" if work else "",
            style="bold" if is_best else None,
        )
    return table


def learning_map(taken: Sequence[Sequence[float]], groups: Sequence[int] | None) -> Text:
    """Draw who learnt from whom: a row for each receiver, brighter where more of a giver's models was mixed in."""
    clients = sorted(range(len(taken)), key=lambda c: (groups[c] if groups else 0, c))
    brightest = max((taken[r][g] for r in clients for g in clients if r != g), default=0.0)
    if len(clients) > MAP_LIMIT:
        return Text(f"({len(clients)} clients: too many to draw here; the matrix is in the run's folder)")
    drawing = Text("giver      " + "".join(f"{c:>3}" for c in clients) + "\n", style="dim")
    for receiver in clients:
        group = f"group {groups[receiver]}" if groups else "client"
        drawing.append(f"{group:<8}{receiver:>3}", style="dim")
        for giver in clients:
            if giver == receiver:
                drawing.append("  ·", style="dim")
            else:
                block, style = shade(taken[receiver][giver] / brightest if brightest > 0 else 0.0)
                drawing.append(f" {block}", style=style)
        drawing.append("\n")
    return drawing


def shade(height: float) -> tuple[str, str]:
    """Return what stands for a share from 0 to 1, two characters wide, and its style."""
    step = math.ceil(height * (len(SHADES) - 1))
    return " ░▒▒▓▓█"[step] * 2, SHADES[step]


def recovery_sentence(record: RunRecord) -> str:
    """Say in words how well the affinity matrix shows the groups behind the clients."""
    if record.groups is None or record.groups_found is None or record.group_agreement is None:
        return ""
    found = record.group_agreement
    members: dict[int, list[int]] = {}
    for client, group in enumerate(record.groups_found):
        members.setdefault(group, []).append(client)
    named = "; ".join(", ".join(map(str, clients)) for clients in sorted(members.values()))
    outcome = "recovers every one of them" if found == 1 else f"finds {named}"
    return (
        f"Seed {record.seed}: clustering what clients think of each other into {len(members)} groups {outcome}"
        f" (adjusted Rand index {found:.2f})."
    )


def verdict(records: Sequence[RunRecord], method: str) -> str:
    """Say what a method gained over the others, on average over seeds and clients."""
    from fedfomo.report.text import title_of

    means: dict[str, list[float]] = {}
    for record in records:
        means.setdefault(record.method, []).append(record.summary().mean)
    scale, unit = (100.0, " %") if _are_shares(records) else (1.0, "")

    def said(value: float, sign: str = "") -> str:
        return f"{scale * value:{sign}.1f}" if unit else f"{value:{sign}.3f}"

    title, ours = title_of(method), fmean(means[method])
    others = {other: fmean(values) for other, values in means.items() if other != method}
    if len(others) > NAMED_RIVALS:
        place = 1 + sum(mean > ours for mean in others.values())
        best = max(others, key=others.__getitem__)
        return (
            f"{title} ends at {said(ours)}{unit}, place {place} of {len(means)}: {said(ours - others['local'], '+')}"
            f" against local, {said(ours - others[best], '+')} against {best}, the best of the others."
        )
    gains = [f"{said(ours - mean, '+')} against {other}" for other, mean in others.items()]
    return f"{title} ends at {said(ours)}{unit}: {', '.join(gains)}."


def _are_shares(records: Sequence[RunRecord]) -> bool:
    values = [value for record in records for value in record.figures().values() if math.isfinite(value)]
    return all(0 <= value <= 1 for value in values)


def _figure_of(value: float, scale: float) -> str:
    return f"{100 * value:.1f}" if scale > 1 else f"{value:.3f}"


def _spread(means: Sequence[float], scale: float) -> str:
    spread = f" ± {_figure_of(stdev(means), scale)}" if len(means) > 1 else ""
    return f"{_figure_of(fmean(means), scale)}{spread}"


def epsilon_table(log: Path, delta: float) -> Table:
    """Show ε of the training records, by client and round, as the log of a run has it."""
    rounds: dict[int, dict[str, Any]] = {line["round"]: line["epsilon"] for line in read_lines(log)}
    shown = sorted({round(step * (len(rounds) - 1) / (MOST_ROUNDS - 1)) for step in range(MOST_ROUNDS)})
    clients = sorted({int(client) for epsilons in rounds.values() for client in epsilons})
    title = f"ε of training records at δ = {delta:g}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("client", justify="right")
    for number in shown:
        table.add_column(f"  round {number + 1}", justify="right", no_wrap=True)
    latest = dict.fromkeys(clients, "")
    rows: dict[int, list[str]] = {client: [] for client in clients}
    for number in sorted(rounds):
        for client, epsilon in rounds[number].items():
            latest[int(client)] = _figure(epsilon["training"])
        if number in shown:
            for client in clients:
                rows[client].append(latest[client])
    for client in clients[:MOST_CLIENTS]:
        table.add_row(str(client), *rows[client])
    if len(clients) > MOST_CLIENTS:
        table.add_row("…", *("…" for _ in shown))
    return table


def _figure(epsilon: float | None) -> str:
    return "∞" if epsilon is None else f"{epsilon:.2f}"


def bars(counts: Sequence[int], most_bars: int = 1000) -> str:
    """Draw a mix of labels: a bar per label, or per few neighbouring ones; the highest is full."""
    together = max(1, labels_a_bar(len(counts), most_bars))
    heights = [sum(counts[start : start + together]) for start in range(0, len(counts), together)]
    top = max(heights, default=0)
    # Rounding up keeps what is there at all visible.
    return "".join(LEVELS[-(-len(LEVELS) * height // top) - 1] if height else NONE for height in heights)


def labels_a_bar(num_classes: int, most_bars: int) -> int:
    """Return how many neighbouring labels share a bar."""
    return -(-num_classes // most_bars)
