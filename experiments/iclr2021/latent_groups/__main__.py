"""`python -m experiments.iclr2021.latent_groups build --dataset cifar10 --data data`: make a data set's groups."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar

from experiments.iclr2021.latent_groups import build
from experiments.iclr2021.latent_groups.embedding import Progress, schedule_for
from experiments.iclr2021.status import duration
from fedfomo.cli.main import run_and_exit
from fedfomo.cli.terminal import console, require_file
from fedfomo.datasets.cache import cache_folder
from fedfomo.datasets.latent_groups import save_groups, user_file
from fedfomo.datasets.readers import load_data, read_folder


@dataclass(frozen=True)
class BuildConfig:
    """Make a data set's latent distributions as in the paper, and keep them: every run finds them there.

    VGG-11 is trained on the set, every image is represented by its second fully connected layer, and the
    representations are clustered. It takes hours; an interrupted build continues where it stopped.
    """

    dataset: str
    """The data set's name."""
    data: Path
    """Folder that holds the data set."""
    work: Path | None = None
    """Folder for the training's checkpoint and the representations; by default one in the cache."""
    out: Path | None = None
    """File for the groups; by default one in the cache, where runs look for it."""
    distributions: tuple[int, ...] = build.NUMBERS
    """Numbers of groups (D) to make; they replace those made before."""


@dataclass(frozen=True)
class TableConfig:
    """Print a Markdown table of how different clients' labels are in latent distributions, beside the paper's."""

    dataset: str
    """The data set's name."""
    data: Path | None = None
    """Folder that holds the data set."""
    clients: int = 15
    """Number of clients (K)."""
    seed: int = 0
    """Deals the groups out to clients."""


Command = Annotated[BuildConfig, tyro.conf.subcommand("build")] | Annotated[TableConfig, tyro.conf.subcommand("table")]


def main(arguments: list[str]) -> None:
    """Run one of the two commands."""
    command = tyro.cli(Command, args=arguments, prog="python -m experiments.iclr2021.latent_groups")
    if isinstance(command, TableConfig):
        data = load_data(command.dataset, command.data)
        sys.stdout.write(build.distance_table(data, command.clients, command.seed) + "\n")
    else:
        _build(command)


def _build(config: BuildConfig) -> None:
    require_file(config.out)
    images = read_folder(config.data, config.dataset)
    work = config.work or cache_folder() / "embeddings" / images.fingerprint[:16]
    file = config.out or user_file(images)
    console.print(f"{images.name}: training VGG-11 in {work}", soft_wrap=True)
    bar = ProgressBar(
        TextColumn("training"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("steps  {task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=None)

    def report(now: Progress) -> None:
        words = f"loss {now.loss:.3f}, accuracy {now.accuracy:.3f}, {duration(now.seconds_left)} left"
        bar.update(task, completed=now.step, total=now.steps, description=words)
        if not console.is_terminal:
            console.print(f"step {now.step}/{now.steps}: {words}")
        if now.step == now.steps:
            bar.stop()
            console.print("trained; now every image is represented and grouped, which takes some minutes")

    try:
        with bar:
            schedule = schedule_for(images)
            built = build.build_groups(images, work, schedule, config.distributions, report, console.print)
    except KeyboardInterrupt:
        console.print("the same command goes on from the last checkpoint, at most a few minutes back")
        raise
    save_groups(built, file)
    console.print(f"written to {file}", soft_wrap=True)


if __name__ == "__main__":
    run_and_exit(main)
