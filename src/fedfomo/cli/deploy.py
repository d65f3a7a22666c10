"""The commands about real federations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from typing import Any

from fedfomo.cli.deploy_options import (
    AddSiteConfig,
    InitConfig,
    RemoveSiteConfig,
    RenewConfig,
    RunConfig,
    ServerConfig,
    SiteConfig,
    StatusConfig,
)
from fedfomo.cli.terminal import choose, console, parse, parse_with_options, values_of, warn
from fedfomo.core.method_names import DEFAULT_METHOD
from fedfomo.deployment.addresses import host_and_port, is_loopback, spell_address
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.errors import InputError, require
from fedfomo.io import to_json
from fedfomo.runs.config import label_of


def deploy(arguments: list[str]) -> None:
    """Set up, run and watch a federation of real sites."""
    verbs = {  # in the order in which they are used
        "init": init,
        "site": site,
        "server": server,
        "status": status,
        "run": run,
        "add-site": add_site,
        "remove-site": remove_site,
        "renew": renew,
    }
    try:
        choose("deploy", verbs, arguments)
    except ModuleNotFoundError as error:
        if error.name not in ("flwr", "nacl", "cryptography"):
            raise
        raise InputError("federations run on Flower: pip install 'fedfomo[flower]'") from None


def init(arguments: list[str]) -> None:
    """At the server, first: make a federation, and a folder for each site, which is moved to the site."""
    [method, *_] = values_of("--method", arguments) or [DEFAULT_METHOD]
    config, options = parse_with_options("deploy init", InitConfig, arguments, {method: {}})
    from fedfomo.deployment.provisioning import check_names, provision

    names = [name.strip() for name in config.sites.split(",") if name.strip()]
    check_names(names)
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
    """At the server, at any time: add a site, and make the folder that is moved to it."""
    config = parse("deploy add-site", AddSiteConfig, arguments)
    from fedfomo.deployment import provisioning

    place = provisioning.add_site(FederationFolder(config.folder), config.name)
    console.print(f"move {place.path} to the site; a running server serves it from the next round", soft_wrap=True)


def remove_site(arguments: list[str]) -> None:
    """At the server, at any time: remove a site for good."""
    config = parse("deploy remove-site", RemoveSiteConfig, arguments)
    from fedfomo.deployment import provisioning

    folder = FederationFolder(config.folder)
    staying = provisioning.remove_site(folder, config.name)
    console.print(f"{config.name} has left: a running server asks it nothing from the next round on", soft_wrap=True)
    min_clients = folder.config().min_clients
    if len(staying) < min_clients:
        warn(f"{len(staying)} of at least {min_clients} sites stay: no round is run until `deploy add-site` adds more")


def renew(arguments: list[str]) -> None:
    """At the server, when a certificate ends or a key is lost: make keys or certificates anew."""
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
    """At the server, before or after the sites are started: run the server until all rounds are complete."""
    config = parse("deploy server", ServerConfig, arguments)
    _serve(FederationFolder(config.folder), config.metrics, config.new_log)


def run(arguments: list[str]) -> None:
    """At the server, after `deploy server` has ended: run a further experiment with the same sites."""
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
        whoever = f"whoever reaches {spell_address(host, port)} can start runs"
        warn(f"{whoever}: put a proxy before it that lets /v1/fleet/ through alone")
    end_on_termination()
    with _metrics(metrics, lambda: server_status.facts(folder)):
        ServerProcess(folder, _tell, new_log).run()
    # What it ends with says how the run went: systemd starts it again after anything but 0.
    _print_state(server_status.sentences(folder), server_status.facts(folder)["problems"])


def site(arguments: list[str]) -> None:
    """At each site, with the folder that it received: run the site until it is stopped."""
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
    with _metrics(config.metrics, lambda: site_status.facts(place, is_running=True)):
        process.run()


def status(arguments: list[str]) -> None:
    """At the server or at a site, at any time: show how far it is; ends with 1 if something is wrong."""
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
        _print_state(sentences, facts["problems"])
    if facts["problems"]:
        raise SystemExit(1)


def _print_state(sentences: Iterable[str], problems: Iterable[str]) -> None:
    for sentence in (*sentences, *(f"PROBLEM: {problem}" for problem in problems)):
        console.print(sentence, soft_wrap=True, markup=False)


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
