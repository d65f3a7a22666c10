"""The commands about real federations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedfomo.cli.terminal import choose, console, parse, parse_with_options, values_of, warn
from fedfomo.deployment.settings import FederationConfig, FederationFolder, SiteFolder, host_and_port, is_loopback
from fedfomo.errors import InputError, require
from fedfomo.io import to_json
from fedfomo.runs.config import label_of

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

    name: Annotated[str, tyro.conf.Positional]
    """The site's name."""
    folder: Path = FOLDER
    """The federation's folder."""


@dataclass(frozen=True)
class RemoveSiteConfig(AddSiteConfig):
    """Remove a site from a federation, which may be running. It cannot come back."""


@dataclass(frozen=True)
class RenewConfig:
    """Make a site's keys anew, or without a name the server's certificate, for the address in federation.toml."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """The site whose keys are replaced: the old ones are not let in any more."""
    folder: Path = FOLDER
    """The federation's folder."""


@dataclass(frozen=True)
class FolderConfig:
    """Name a federation."""

    folder: Annotated[Path, tyro.conf.Positional] = FOLDER
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

    name: Annotated[str, tyro.conf.Positional]
    """The experiment's name."""
    folder: Annotated[Path, tyro.conf.Positional] = FOLDER
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

    folder: Annotated[Path, tyro.conf.Positional]
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
class StatusConfig(FolderConfig):
    """Show the progress of a federation, or in a site's folder that of the site; end with 1 if something is wrong.

    That is a federation in which no round is complete for too long, a delivery log that was tampered with, or a site
    that is not running, or not let in.
    """

    json: bool = False
    """Show it as JSON, for programs."""
    experiment: str | None = None
    """The experiment to look at; by default the latest. That of federation.toml is called federation."""


def deploy(arguments: list[str]) -> None:
    """Set up, run and watch a federation of real sites."""
    verbs = {
        "init": init,
        "add-site": add_site,
        "remove-site": remove_site,
        "renew": renew,
        "server": server,
        "run": run,
        "site": site,
        "status": status,
    }
    try:
        choose("deploy", verbs, arguments)
    except ModuleNotFoundError as error:
        if error.name not in ("flwr", "nacl", "cryptography"):
            raise
        raise InputError("federations run on Flower: pip install 'fedfomo[flower]'") from None


def init(arguments: list[str]) -> None:
    """Make a federation."""
    [method, *_] = values_of("--method", arguments) or ["fedfomo"]
    config, options = parse_with_options("deploy init", InitConfig, arguments, {method: {}})
    from fedfomo.deployment.provisioning import provision

    names = [name.strip() for name in config.sites.split(",") if name.strip()]
    settings = config.settings
    enough = f"a round takes {settings.min_clients} sites or more: name as many, or give --min-clients {len(names)}"
    require(len(names) >= settings.min_clients or not names, f"{len(names)} site, and {enough}")
    max_sites = settings.max_sites or 2 * len(names)
    listen = settings.listen or _behind_proxy(settings.address)
    settings = replace(settings, max_sites=max_sites, listen=listen, options=options[label_of(method)])
    folder = FederationFolder(config.folder)
    provision(folder, names, settings, config.model)
    console.print(f"{config.folder} holds the federation: model.py is the network, federation.toml the settings")
    console.print(f"move {config.folder / 'sites'}/NAME to each site, keys and all; its data.py there reads its data")
    console.print(f"then: fedfomo deploy server {config.folder}, and at each site: fedfomo deploy site NAME")


def _behind_proxy(address: str) -> str:
    """Return where the server listens if a proxy on its machine has the port that sites reach; "" if there is none."""
    host, port = host_and_port(address)
    return "" if is_loopback(host) else f"127.0.0.1:{port + 1000 if port < 64536 else port - 1000}"


def add_site(arguments: list[str]) -> None:
    """Add a site to a federation."""
    config = parse("deploy add-site", AddSiteConfig, arguments)
    from fedfomo.deployment import provisioning

    place = provisioning.add_site(FederationFolder(config.folder), config.name)
    console.print(f"move {place.path} to the site; a running server serves it from the next round", soft_wrap=True)


def remove_site(arguments: list[str]) -> None:
    """Remove a site from a federation."""
    config = parse("deploy remove-site", RemoveSiteConfig, arguments)
    from fedfomo.deployment import provisioning

    folder = FederationFolder(config.folder)
    staying = provisioning.remove_site(folder, config.name)
    console.print(f"{config.name} has left: a running server asks it nothing from the next round on", soft_wrap=True)
    min_clients = folder.config().min_clients
    if len(staying) < min_clients:
        warn(f"{len(staying)} of at least {min_clients} sites stay: no round is run until `deploy add-site` adds more")


def renew(arguments: list[str]) -> None:
    """Make keys or certificates anew."""
    config = parse("deploy renew", RenewConfig, arguments)
    from fedfomo.deployment import renewal

    folder = FederationFolder(config.folder)
    if not config.name:
        renewal.renew_server(folder)
        words = "the server's certificate is new; start the server again, and nginx -s reload where there is one"
    else:
        place = renewal.renew_site(folder, config.name)
        words = f"copy the files of {place} over those in {config.name}'s folder, start `deploy site` there again"
    console.print(words, soft_wrap=True, markup=False)


def server(arguments: list[str]) -> None:
    """Run the server of a federation."""
    config = parse("deploy server", ServerConfig, arguments)
    _serve(FederationFolder(config.folder), config.metrics, config.new_log)


def run(arguments: list[str]) -> None:
    """Run a further experiment of a federation."""
    config = parse("deploy run", RunConfig, arguments)
    from fedfomo.deployment.experiments import prepare_experiment

    federation = FederationFolder(config.folder)
    folder = prepare_experiment(federation, config.name, config.config, config.start_from)
    _serve(folder, config.metrics, config.new_log)


def _serve(folder: FederationFolder, metrics: int, new_log: bool) -> None:
    from fedfomo.deployment import status as server_status
    from fedfomo.deployment.server_process import ServerProcess
    from fedfomo.deployment.subprocesses import end_on_termination

    host, port = folder.config().listens_on
    if not is_loopback(host):
        warn(f"whoever reaches {host}:{port} can start runs: put a proxy before it that lets /v1/fleet/ through alone")
    if new_log:
        from fedfomo.deployment.audit_log import begin_anew

        begin_anew(folder.deliveries)
    end_on_termination()
    with _metrics(metrics, lambda: server_status.facts(folder)):
        ServerProcess(folder, _tell).run()
    status([str(folder.path)])


def site(arguments: list[str]) -> None:
    """Run a site."""
    config = parse("deploy site", SiteConfig, arguments)
    require(config.threads >= 1, f"threads must be at least 1, not {config.threads}")
    if config.device != "cpu":
        from fedfomo.core.device import resolve_device

        resolve_device(config.device)
    from fedfomo.deployment import site_status
    from fedfomo.deployment.site_process import SiteProcess
    from fedfomo.deployment.subprocesses import end_on_termination

    place = SiteFolder(config.folder)
    process = SiteProcess(place, config.data, config.threads, _tell, config.supernode, config.alone, config.device)
    console.print(what_leaves(place), soft_wrap=True, markup=False)
    end_on_termination()
    with _metrics(config.metrics, lambda: site_status.facts(place)):
        process.run()


def status(arguments: list[str]) -> None:
    """Show the progress of a federation."""
    config = parse("deploy status", StatusConfig, arguments)
    from fedfomo.deployment import site_status
    from fedfomo.deployment import status as server_status

    if (config.folder / "site.json").exists():
        site = SiteFolder(config.folder)
        require(config.experiment is None, "a site's folder shows the latest experiment: leave --experiment out")
        facts, sentences = site_status.facts(site), site_status.sentences(site)
    else:
        known = FederationFolder(config.folder)
        is_either = known.settings.exists()
        require(is_either, f"{config.folder} is no federation's folder, and no site's, such as federation/sites/leeds")
        folder = known.latest() if config.experiment is None else known.of(config.experiment)
        facts, sentences = server_status.facts(folder), server_status.sentences(folder)
    if config.json:
        sys.stdout.write(to_json(facts, indent=1) + "\n")
    else:
        for sentence in (*sentences, *(f"PROBLEM: {problem}" for problem in facts["problems"])):
            console.print(sentence, soft_wrap=True, markup=False)
    if facts["problems"]:
        raise SystemExit(1)


def what_leaves(site: SiteFolder) -> str:
    """Say what a site sends, and what it has settled about its records."""
    from fedfomo.deployment.privacy_ledger import load_ledger
    from fedfomo.deployment.site_policy import read_policy

    settings, ledger = load_ledger(site)
    policy = read_policy(site)
    scores = "test scores, " if policy.report_scores else ""
    kinds = "numbers of records, and what was found out about models that were sent here; never examples"
    if not settings.is_on:
        leaves = f"models as they were trained, {scores}{kinds}"
        return f"what leaves this site: {leaves}; {site.privacy_settings} can add noise"
    limit = settings.epsilon if settings.budget is None else settings.budget
    judged = "kept within the same" if settings.validation_noise is not None else "no guarantee"
    training = f"training records: ε at most {limit:g} (δ = {settings.delta:g}); validation records: {judged}"
    spent = f"{ledger.fault or training}; {site.ledger} says what was spent"
    return f"what leaves this site: models trained with noise, {kinds}; {spent}"


def _metrics(port: int, facts: Callable[[], Mapping[str, Any]]) -> AbstractContextManager[Any]:
    if not port:
        return nullcontext()
    from fedfomo.deployment.metrics import metrics_endpoint

    return metrics_endpoint(port, facts)


def _tell(words: str) -> None:
    """Say what happens, with the time: it may be hours until the next word."""
    console.print(f"{datetime.now():%H:%M:%S} {words}", soft_wrap=True, markup=False, highlight=False)
