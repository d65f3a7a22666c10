"""The command that shows what personalised federated learning is, in a minute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedfomo.cli.compare import start_comparison
from fedfomo.cli.report import report
from fedfomo.cli.terminal import parse
from fedfomo.runs.config import CompareConfig


@dataclass(frozen=True)
class DemoConfig:
    """Compare local training, FedAvg and FedFomo: 15 clients, 5 latent groups of handwritten digits."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; every method is run once with each."""
    out: Path | None = None
    """Folder for the runs; it must not exist yet. By default runs/ and the date and time."""


def demo(arguments: list[str]) -> None:
    """Compare three methods on the embedded data set and show what FedFomo found out."""
    config = parse("demo", DemoConfig, arguments)
    methods = ("local", "fedavg", "fedfomo")
    report([str(start_comparison(CompareConfig(methods, seeds=config.seeds, out=config.out), "demo"))])
