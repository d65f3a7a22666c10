"""The bill for privacy, shown client by client and round by round."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedfomo.privacy.accounting import Spent
from fedfomo.privacy.config import Privacy

MOST_CLIENTS = 15  # shown; all are in the run's folder
MOST_ROUNDS = 6

NO_GUARANTEE = "no guarantee"


def epsilon_table(log: Path, delta: float) -> Table:
    """Show ε of the training records, by client and round, as the log of a run has it."""
    rounds: dict[int, dict[str, Any]] = {}
    for line in log.read_text().splitlines():
        entry: dict[str, Any] = json.loads(line)
        rounds[entry["round"]] = entry["epsilon"]
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


def privacy_sentences(spent: dict[int, Spent], privacy: Privacy) -> list[str]:
    """Say what is guaranteed to whose records, and what is not."""
    training = max(one.training for one in spent.values())
    validation = max(one.validation for one in spent.values())
    headline = max(training, validation)
    sentences = [
        f"training records: {_guarantee(training)}; validation records: {_guarantee(validation)};"
        f" every record: {_guarantee(headline)} (the client that spent most, δ = {privacy.delta:g})"
    ]
    if privacy.noise == 0:
        sentences.append("gradients were clipped, and no noise was added: that protects nobody")
    if privacy.mode == "research":
        sentences.append("research mode: the noise follows from the seed, so whoever knows that has no noise to face")
    return sentences


def _guarantee(epsilon: float) -> str:
    return f"ε = {epsilon:.2f}" if math.isfinite(epsilon) else NO_GUARANTEE


def _figure(epsilon: float | None) -> str:
    return "∞" if epsilon is None else f"{epsilon:.2f}"
