"""What the commands about real federations take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from fedfomo.deployment.settings import FederationConfig

FOLDER = Path("federation")


@dataclass(frozen=True)
class InitConfig:
    """Make a federation: certificates, keys, settings, and a folder to hand to each site."""

    sites: str
    """Names of the sites, separated by commas."""
    folder: Path = FOLDER
    """Folder to create."""
    model: Path | None = None
    """Your model.py, which is copied to the server and all sites; by default a template."""
    settings: Annotated[FederationConfig, tyro.conf.arg(name="")] = field(default_factory=FederationConfig)


@dataclass(frozen=True)
class AddSiteConfig:
    """Add a site to a federation, which may be running."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """The site's name."""
    folder: Path = FOLDER
    """The federation's folder."""


@dataclass(frozen=True)
class RemoveSiteConfig(AddSiteConfig):
    """Remove a site from a federation, which may be running. It cannot come back."""


@dataclass(frozen=True)
class RenewConfig:
    """Make a site's keys anew, or without a name the server's certificate, for the address in federation.toml."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """The site whose keys are replaced: the old ones are not let in any more."""
    folder: Path = FOLDER
    """The federation's folder."""


@dataclass(frozen=True)
class FolderConfig:
    """Name a federation."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FEDERATION")] = FOLDER
    """The federation's folder."""


@dataclass(frozen=True)
class ServerConfig(FolderConfig):
    """Run the server of a federation until all rounds are done."""

    metrics: int = 0
    """Port on which Prometheus finds /metrics, on this machine's loopback address only; 0: none."""
    new_log: bool = False
    """Put the delivery log aside, whatever became of it, and begin a new one."""


@dataclass(frozen=True)
class RunConfig:
    """Run a further experiment on a federation that was set up before: sites, keys and certificates stay.

    Its settings, run, result and report are in experiments/NAME. Sites that run take part, as far as their policy.toml
    lets them; started again, it goes on from the last complete round. One runs at a time.
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """The experiment's name."""
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FEDERATION")] = FOLDER
    """The federation's folder."""
    config: Path | None = None
    """A TOML file: method, rounds, training and what else differs from federation.toml."""
    start_from: str | None = None
    """An earlier experiment, whose models this one starts from; the one of federation.toml is called federation."""
    metrics: int = 0
    """Port on which Prometheus finds /metrics, on this machine's loopback address only; 0: none."""
    new_log: bool = False
    """Put the delivery log aside, whatever became of it, and begin a new one."""


@dataclass(frozen=True)
class SiteConfig:
    """Run a site until it is stopped."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SITE")]
    """The folder that the site received."""
    data: Path | None = None
    """Where the site's data are; passed to its data.py."""
    threads: int = 1
    """Threads of PyTorch; another number may change results in the last bits."""
    metrics: int = 0
    """Port on which Prometheus finds /metrics, on this machine's loopback address only; 0: none."""
    alone: bool = False
    """Train alone beside the federation, at low priority, and report whether federating pays; nothing of it leaves."""
    device: str = "cpu"
    """PyTorch device on which the site computes: cpu, cuda, cuda:1, mps; several sites may share one."""
    supernode: bool = False
    """Run Flower's own node, which runs the app that the server sends, and a worker beside it; slower."""


@dataclass(frozen=True)
class StatusConfig:
    """Show the progress of a federation, or in a site's folder that of the site; end with 1 if something is wrong.

    That is a federation in which no round is complete for too long, a delivery log that was tampered with, or a site
    that is not running, or not let in.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FEDERATION|SITE")] = FOLDER
    """The federation's folder, or a site's."""
    json: bool = False
    """Show it as JSON, for programs."""
    experiment: str | None = None
    """The experiment to look at; by default the latest. That of federation.toml is called federation."""
