"""Results: methods side by side, and who helps whom."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedfomo.experiment import RunRecord

# Light on dark: the more a giver helps a receiver, the brighter the cell.
SHADES = ("grey11", "grey23", "grey39", "deep_sky_blue4", "deep_sky_blue3", "sky_blue1", "white")
LEGEND = """\
updated: after the last federated update; trained: after the last local training
p10: 10th percentile of clients; > Local: share of clients better than alone
↓ to clients, ↑ to the server, over the whole run"""
MAP_LIMIT = 40  # clients; wider than that, no terminal shows the matrix


def comparison_table(records: Sequence[RunRecord]) -> Table:
    """Show methods as rows; figures are means over seeds of means over clients."""
    title = "Test accuracy in %: mean over clients ± over seeds"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("method", no_wrap=True)
    for heading in ("updated", "trained", "worst", "p10", "> Local", "models ↓ ↑", "MB ↓ ↑"):
        table.add_column(heading, justify="right", no_wrap=True)
    by_method: dict[str, list[RunRecord]] = {}
    for record in records:
        by_method.setdefault(record.method, []).append(record)
    local = {record.seed: record for record in by_method.get("local", [])}
    best = max(fmean(r.summary().mean for r in runs) for runs in by_method.values())
    for method, runs in by_method.items():
        at_update = [run.summary(local.get(run.seed)) for run in runs]
        at_training = [run.summary(point="after_training") for run in runs]
        shares = [s.share_beating_local for s in at_update if s.share_beating_local is not None]
        beating = "" if method == "local" or not shares else f"{100 * fmean(shares):.0f} %"
        down, up = fmean(r.traffic.models_down for r in runs), fmean(r.traffic.models_up for r in runs)
        bytes_down, bytes_up = fmean(r.traffic.bytes_down for r in runs), fmean(r.traffic.bytes_up for r in runs)
        is_best = fmean(s.mean for s in at_update) == best
        table.add_row(
            method,
            _spread([s.mean for s in at_update]),
            _spread([s.mean for s in at_training]),
            f"{100 * fmean(s.worst for s in at_update):.1f}",
            f"{100 * fmean(s.tenth_percentile for s in at_update):.1f}",
            beating,
            f"{down:.0f} {up:.0f}",
            f"{bytes_down / 1e6:.0f} {bytes_up / 1e6:.0f}",
            style="bold" if is_best else None,
        )
    return table


def affinity_map(affinity: Sequence[Sequence[float]], groups: Sequence[int] | None) -> Text:
    """Draw the affinity matrix: a row for each receiver, brighter where a giver's models help it more."""
    clients = sorted(range(len(affinity)), key=lambda c: (groups[c] if groups else 0, c))
    if len(clients) > MAP_LIMIT:
        return Text(f"({len(clients)} clients: too many to draw here; the matrix is in the run's folder)")
    drawing = Text("giver      " + "".join(f"{c:>3}" for c in clients) + "\n", style="dim")
    for receiver in clients:
        others = [affinity[receiver][giver] for giver in clients if giver != receiver]
        low, high = (min(others), max(others)) if others else (0.0, 0.0)
        group = f"group {groups[receiver]}" if groups else "client"
        drawing.append(f"{group:<8}{receiver:>3}", style="dim")
        for giver in clients:
            if giver == receiver:
                drawing.append("  ·", style="dim")
            else:
                height = (affinity[receiver][giver] - low) / (high - low) if high > low else 0.0
                step = round(height * (len(SHADES) - 1))
                drawing.append(" " + "░░▒▒▓▓█"[step] * 2, style=SHADES[step])
        drawing.append("\n")
    return drawing


def recovery_sentence(record: RunRecord) -> str:
    """Say in words how well the affinity matrix shows the groups behind the clients."""
    if record.groups is None or record.groups_found is None or record.group_agreement is None:
        return ""
    found = record.group_agreement
    members: dict[int, list[int]] = {}
    for client, group in enumerate(record.groups_found):
        members.setdefault(group, []).append(client)
    named = "; ".join(", ".join(map(str, clients)) for clients in sorted(members.values()))
    verdict = "found every hidden group" if found == 1 else f"found the groups in part ({named})"
    if found < 0.2:
        verdict = "did not find the groups"
    return f"Seed {record.seed}: FedFomo {verdict}, adjusted Rand index {found:.2f}."


def verdict(records: Sequence[RunRecord]) -> str:
    """Say what FedFomo gained over the others, on average over seeds and clients."""
    means: dict[str, list[float]] = {}
    for record in records:
        means.setdefault(record.method, []).append(100 * record.summary().mean)
    ours = fmean(means["fedfomo"])
    gains = [f"{ours - fmean(values):+.1f} against {method}" for method, values in means.items() if method != "fedfomo"]
    return f"FedFomo ends at {ours:.1f} %: {', '.join(gains)}."


def _spread(means: Sequence[float]) -> str:
    spread = f" ± {100 * pstdev(means):.1f}" if len(means) > 1 else ""
    return f"{100 * fmean(means):.1f}{spread}"
