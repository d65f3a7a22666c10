"""`fedfomo deploy server` and `fedfomo deploy site`: processes of Flower and of fedfomo, kept going."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedfomo.deployment.settings import (
    DATA_VARIABLE,
    SERVER_VARIABLE,
    SITE_VARIABLE,
    THREADS_VARIABLE,
    WORKER_VARIABLE,
    FederationFolder,
    SiteFolder,
)
from fedfomo.deployment.subprocesses import (
    ProcessGroup,
    answers,
    ask_flower,
    environment,
    exclusive_supervisor,
    free_port,
    is_alive,
    program,
    wait_until,
)
from fedfomo.errors import InputError, require
from fedfomo.io import read_json

START = 180.0  # seconds that a SuperLink or a ServerApp has to start
AGAIN = 60.0  # seconds before the SuperLink is asked again to turn a site away
MAX_CRASHES = 5  # deaths of a ServerApp in one round
CONNECTION = "fedfomo"  # the name of the SuperLink in Flower's own configuration

APP = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federation"
version = "1.0.0"
description = "A federation of fedfomo"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedfomo"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
""",
    "federation/__init__.py": '"""What Flower starts; everything else is installed at every site."""\n',
    "federation/server_app.py": "from fedfomo.deployment import server_app\n\napp = server_app.app\n",
    "federation/client_app.py": "from fedfomo.deployment import client_app\n\napp = client_app.app\n",
}

Notify = Callable[[str], None]


class FlowerCommandError(InputError):
    """One of Flower's commands failed: because of what was asked, or because the SuperLink is dead."""


class ServerProcess:
    """The processes of a federation's server."""

    def __init__(self, folder: FederationFolder, notify: Notify) -> None:
        self._folder = folder
        self._config = folder.config()
        self._notify = notify
        self._home = folder.server / "flower"
        self._environment = environment(self._home, {SERVER_VARIABLE: str(folder.path)})
        self._log = (folder.server / "flower.log").open("ab")
        self._link: ProcessGroup | None = None
        self._run = ""
        self._registered: dict[str, str] = {}  # what Flower calls each site
        self._leaving: dict[str, int] = {}  # rounds that were complete when a site was found to have left
        self._overdue: dict[str, float] = {}  # when to try again to strike it off
        self._deaths = 0  # of the ServerApp, since a round was completed
        self._rounds_done = 0  # when it died last

    def run(self) -> None:
        """Keep SuperLink and run going until the federation is finished."""
        with exclusive_supervisor(self._folder.path, SERVER_VARIABLE):
            self._folder.failure.unlink(missing_ok=True)
            self._write_app()
            try:
                while not self._folder.result.exists():
                    try:
                        self._go_on()
                    except FlowerCommandError:
                        if not self._link_is_dead():
                            raise
                    time.sleep(0.5)
            finally:
                if self._link is not None:
                    self._link.end()
                self._log.close()

    def _go_on(self) -> None:
        """Restart whatever has died."""
        if self._link is None or self._link_is_dead():
            if self._link is not None:
                self._notify(f"the SuperLink ended with {self._link.exit_code}: starting it again")
                self._link.end()
            self._start_link()
        self._register()
        if not self._run:
            self._start_run()
        elif not self._app_is_alive() and not self._folder.result.exists():
            if self._folder.failure.exists():
                raise InputError(self._folder.failure.read_text())
            self._give_up_if_hopeless()
            self._notify("the ServerApp died: going on from the last complete round")
            # Sites need not bother with the requests of a dead run; if Flower has noticed already, so much the better.
            ask_flower(["stop", self._run, CONNECTION], self._environment)
            self._start_run()

    def _give_up_if_hopeless(self) -> None:
        """Give up when the ServerApp dies again and again without completing a round."""
        rounds_done = self._count_rounds()
        self._deaths = self._deaths + 1 if rounds_done == self._rounds_done else 1
        self._rounds_done = rounds_done
        log = self._folder.failure.with_suffix(".log")
        require(self._deaths < MAX_CRASHES, f"the ServerApp died {MAX_CRASHES} times in one round; {log} may say why")

    def _count_rounds(self) -> int:
        """Return how many rounds are complete, by the ServerApp's last word."""
        path = self._folder.status
        return read_json(path, "delete it")["rounds_done"] if path.exists() else 0

    def _start_link(self) -> None:
        host, port = self._config.listens_on
        require(not answers(host, port), f"{host}:{port} is in use: choose another address, or stop what uses it")
        server = self._folder.server
        security = [
            "--ssl-ca-certfile",
            str(server / "ca.crt"),
            "--ssl-certfile",
            str(server / "server.crt"),
            "--ssl-keyfile",
            str(server / "server.key"),
            "--enable-supernode-auth",
        ]
        command = [
            program("flower-superlink"),
            "--host",
            host,
            "--port",
            str(port),
            *(["--insecure"] if self._config.plaintext else security),
        ]
        self._link = ProcessGroup(command, self._environment, self._log)
        self._run = ""
        self._registered, self._overdue, self._leaving = {}, {}, {}
        link = self._link
        started = wait_until(lambda: answers(host, port) or link.exit_code is not None, START)
        is_up = started and link.exit_code is None
        require(is_up, f"the SuperLink does not start; {self._log.name} says why")

    def _register(self) -> None:
        """Tell the SuperLink the keys of all sites, those that were added since included, and who has left since."""
        if self._config.plaintext:
            return
        for site in self._folder.registry():
            if site.has_left:
                self._unregister(site.name)
            elif site.name not in self._registered:
                answer = self._flower("supernode", "register", str(self._folder.server / f"{site.name}.pub"))
                self._registered[site.name] = str(answer["node-id"])

    def _unregister(self, name: str) -> None:
        """Let the SuperLink turn a site away, once the round is over in which it left: its answer to that counts.

        It is asked for nothing any more, whether this succeeds or not.
        """
        if name not in self._registered or time.monotonic() < self._overdue.get(name, 0.0):
            return
        done = self._count_rounds()
        if done <= self._leaving.setdefault(name, done):
            return
        try:
            self._flower("supernode", "unregister", self._registered[name])
        except FlowerCommandError as error:
            if self._lets_in(self._registered[name]):
                if name not in self._overdue:
                    self._notify(f"{name} has left, and the SuperLink lets it in still: {error}; it is asked again")
                self._overdue[name] = time.monotonic() + AGAIN
                return
        del self._registered[name]

    def _lets_in(self, node: str) -> bool:
        """Return whether the SuperLink lets a node in: of one that was never on line it says no, and then complains."""
        try:
            nodes = self._flower("supernode", "list")["nodes"]
        except FlowerCommandError:  # whatever kept it from turning the node away
            return True
        return any(found["node-id"] == node and found["status"] != "unregistered" for found in nodes)

    def _start_run(self) -> None:
        self._folder.process.unlink(missing_ok=True)
        self._run = str(self._flower("run", str(self._app))["run-id"])
        started = wait_until(lambda: self._folder.process.exists() or self._link_is_dead(), START)
        require(started, f"the ServerApp does not start; {self._log.name} says why")

    def _app_is_alive(self) -> bool:
        path = self._folder.process
        return path.exists() and is_alive(int(path.read_text()))

    def _link_is_dead(self) -> bool:
        return self._link is not None and self._link.exit_code is not None

    def _flower(self, *arguments: str) -> dict[str, Any]:
        answer = ask_flower([*arguments, CONNECTION], self._environment)
        if not answer.get("success"):
            raise FlowerCommandError(f"flwr {arguments[0]} failed: {answer.get('error-message')}")
        return answer

    def _write_app(self) -> None:
        for name, content in APP.items():
            path = self._app / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        security = f'root-certificates = "{self._folder.server / "ca.crt"}"'
        lines = [
            "[superlink]",
            f'default = "{CONNECTION}"',
            f"[superlink.{CONNECTION}]",
            f'address = "127.0.0.1:{self._config.listens_on[1]}"',
            "insecure = true" if self._config.plaintext else security,
        ]
        (self._home / "config.toml").write_text("\n".join(lines) + "\n")

    @property
    def _app(self) -> Path:
        return self._folder.server / "federation"


RESTART = 5.0  # seconds before a process is started again; the server has to notice first that a SuperNode was gone


class SiteProcess:
    """The processes of one site: a SuperNode, which brings requests, and a worker, which carries them out."""

    def __init__(self, site: SiteFolder, data: Path | None, threads: int, notify: Callable[[str], None]) -> None:
        self._site = site
        self._card = site.card()
        self._notify = notify
        self._variables = {SITE_VARIABLE: str(site.path), THREADS_VARIABLE: str(threads)}
        if data is not None:
            self._variables[DATA_VARIABLE] = str(data.absolute())

    def run(self) -> None:
        """Keep both going until this process is told to stop."""
        # The names of sockets are short: the site's folder may be too deep for one.
        with (
            exclusive_supervisor(self._site.path, SITE_VARIABLE),
            tempfile.TemporaryDirectory(prefix="fedfomo-") as place,
            (self._site.path / "flower.log").open("ab") as log,
        ):
            around = environment(self._site.path / "flower", {**self._variables, WORKER_VARIABLE: f"{place}/worker"})
            commands = {"SuperNode": self._node, "worker": _worker}
            running = {what: ProcessGroup(command(), around, log) for what, command in commands.items()}
            try:
                while True:
                    time.sleep(0.5)
                    for what in [what for what, group in running.items() if group.exit_code is not None]:
                        code = running[what].exit_code
                        self._notify(f"the {what} ended with {code}: starting it again; {log.name} says why")
                        running[what].end()
                        time.sleep(RESTART)
                        running[what] = ProcessGroup(commands[what](), around, log)
            finally:
                for group in running.values():
                    group.end()

    def _node(self) -> list[str]:
        security = [
            "--root-certificates",
            str(self._site.ca),
            "--auth-supernode-private-key",
            str(self._site.key),
        ]
        return [
            program("flower-supernode"),
            "--superlink",
            self._card.address,
            "--host",
            "127.0.0.1",
            "--port",
            str(free_port()),
            *(["--insecure"] if self._card.plaintext else security),
        ]


def _worker() -> list[str]:
    return [sys.executable, "-m", "fedfomo.deployment.site_client"]
