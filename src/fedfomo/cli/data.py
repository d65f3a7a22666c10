"""The command that downloads public data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedfomo.cli.terminal import choose, console, parse


@dataclass(frozen=True)
class GetConfig:
    """Download a public data set: mnist, cifar10 or cifar100."""

    name: Annotated[str, tyro.conf.Positional]
    """The data set."""
    folder: Path = Path("data")
    """Folder for its files; it may hold several sets."""


def data(arguments: list[str]) -> None:
    """Fetch data sets."""
    choose("data", {"get": get}, arguments)


def get(arguments: list[str]) -> None:
    """Download a public data set."""
    config = parse("data get", GetConfig, arguments)
    from fedfomo.cli.progress import DownloadBars
    from fedfomo.datasets.download import download

    with DownloadBars(console) as bars:
        download(config.name, config.folder, bars.report)
    console.print(f"{config.name} is in {config.folder}: use it with", soft_wrap=True)
    console.print(f"fedfomo run --dataset {config.name} --data {config.folder}", soft_wrap=True)
