"""`fedfomo deploy server`: a SuperLink and a run of ours on it, kept going, and what happens told while it does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedfomo.deployment.addresses import spell_address
from fedfomo.deployment.audit_log import begin_anew
from fedfomo.deployment.encryption import require_private
from fedfomo.deployment.progress import Progress
from fedfomo.deployment.renewal import require_names
from fedfomo.deployment.settings import EXPERIMENT_VARIABLE, SERVER_VARIABLE, FederationFolder
from fedfomo.deployment.subprocesses import (
    ProcessGroup,
    answers,
    environment,
    exclusive_supervisor,
    is_alive,
    program,
    rotate,
    sleep,
    wait_until,
)
from fedfomo.deployment.superlink_control import ControlError, SuperLinkControl
from fedfomo.errors import InputError, require
from fedfomo.io import read_json

START = 180.0  # seconds that a SuperLink or a ServerApp has to start
AGAIN = 60.0  # seconds before the SuperLink is asked again to turn a site away
MAX_CRASHES = 5  # deaths of a ServerApp in one round

Notify = Callable[[str], None]


class ServerProcess:
    """The processes of a federation's server."""

    def __init__(self, folder: FederationFolder, notify: Notify, new_log: bool = False) -> None:
        self._folder = folder
        self._new_log = new_log
        self._config = folder.config()
        self._notify = notify
        self._progress = Progress(folder, notify)
        around = {SERVER_VARIABLE: str(folder.path), EXPERIMENT_VARIABLE: folder.experiment}
        self._environment = environment(folder.server / "flower", around)
        self._log = (folder.server / "flower.log").open("ab")
        self._link: ProcessGroup | None = None
        self._control: SuperLinkControl | None = None
        self._run: int | None = None
        self._registered: dict[str, int] = {}  # what Flower calls each site
        self._keys: dict[str, str] = {}  # by which it lets each site in
        self._leaving: dict[str, int] = {}  # rounds that were complete when a site was found to have left
        self._overdue: dict[str, float] = {}  # when to try again to strike it off
        self._deaths = 0  # of the ServerApp, since a round was completed
        self._rounds_done = 0  # when it died last

    def run(self) -> None:
        """Keep SuperLink and run going until the federation is finished."""
        with self._log, exclusive_supervisor(self._folder.path, SERVER_VARIABLE):
            if self._new_log:
                begin_anew(self._folder.deliveries)
            self._folder.failure.unlink(missing_ok=True)
            self._folder.note_latest()
            try:
                while not self._folder.result.exists():
                    try:
                        self._go_on()
                    except ControlError:
                        if not self._link_is_dead():
                            raise
                    self._progress.tell()
                    rotate(Path(self._log.name))
                    sleep(0.5)
                self._progress.tell()
            finally:
                self._end_link()

    def _go_on(self) -> None:
        """Restart whatever has died."""
        if self._link is None or self._link_is_dead():
            if self._link is not None:
                self._notify(f"the SuperLink ended with {self._link.exit_code}: starting it again")
            self._end_link()
            self._start_link()
        self._register()
        if self._run is None:
            self._start_run()
        elif not self._app_is_alive() and not self._folder.result.exists():
            if self._folder.failure.exists():
                raise InputError(self._folder.failure.read_text())
            self._give_up_if_hopeless()
            self._notify("the ServerApp died: going on from the last complete round")
            # Sites need not bother with the requests of a dead run; if Flower has noticed already, so much the better.
            try:
                self._superlink().stop_run(self._run)
            except ControlError as error:
                self._log.write(f"{error}\n".encode())
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
        near = self._config.reached_on
        address = spell_address(host, port)
        require(not answers(*near), f"{address} is in use: choose another address, or stop what uses it")
        server = self._folder.server
        require_private(server / "server.key", server / "sealing.key")
        if not self._config.plaintext:
            require_names(server / "server.crt", near[0])
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
        self._registered, self._keys, self._overdue, self._leaving = {}, {}, {}, {}
        link = self._link
        started = wait_until(lambda: answers(*near) or link.exit_code is not None, START)
        is_up = started and link.exit_code is None
        require(is_up, f"the SuperLink does not start; {self._log.name} says why")
        authority = None if self._config.plaintext else (server / "ca.crt").read_bytes()
        self._control = SuperLinkControl(spell_address(*near), authority)
        self._notify(f"the SuperLink listens on {address}")

    def _end_link(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._link is not None:
            self._link.end()
        self._link, self._control, self._run = None, None, None

    def _register(self) -> None:
        """Tell the SuperLink the keys of all sites, those that were added since included, and who has left since."""
        if self._config.plaintext:
            return
        for site in self._folder.registry():
            if site.has_left:
                self._unregister(site.name)
            elif self._keys.get(site.name) != site.key:
                if site.name in self._registered:  # its keys were renewed
                    self._superlink().unregister(self._registered[site.name])
                self._registered[site.name] = self._superlink().register(site.key)
                self._keys[site.name] = site.key

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
            self._superlink().unregister(self._registered[name])
        except ControlError as error:
            if self._lets_in(self._registered[name]):
                if name not in self._overdue:
                    self._notify(f"{name} has left, and the SuperLink lets it in still: {error}; it is asked again")
                self._overdue[name] = time.monotonic() + AGAIN
                return
        del self._registered[name]

    def _lets_in(self, node: int) -> bool:
        """Return whether the SuperLink lets a node in: of one that was never on line it says no, and then complains."""
        try:
            return self._superlink().lets_in(node)
        except ControlError:  # whatever kept it from turning the node away
            return True

    def _start_run(self) -> None:
        self._folder.process.unlink(missing_ok=True)
        self._run = self._superlink().start_run()
        started = wait_until(lambda: self._folder.process.exists() or self._link_is_dead(), START)
        require(started, f"the ServerApp does not start; {self._log.name} says why")

    def _app_is_alive(self) -> bool:
        path = self._folder.process
        return path.exists() and is_alive(int(path.read_text()))

    def _link_is_dead(self) -> bool:
        return self._link is not None and self._link.exit_code is not None

    def _superlink(self) -> SuperLinkControl:
        if self._control is None:
            raise ControlError("there is no SuperLink")
        return self._control
