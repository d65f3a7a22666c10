"""The bill for privacy, shown client by client and round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedfomo.io import read_lines

MOST_CLIENTS = 15  # shown; all are in the run's folder
MOST_ROUNDS = 6


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
