"""`fedfomo deploy site`: the site's own process, or with `--supernode` Flower's node and a worker, kept going."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

from fedfomo.deployment.encryption import require_private
from fedfomo.deployment.settings import (
    DATA_VARIABLE,
    DEVICE_VARIABLE,
    EXPERIMENT_VARIABLE,
    SITE_VARIABLE,
    THREADS_VARIABLE,
    WORKER_VARIABLE,
    SiteFolder,
)
from fedfomo.deployment.subprocesses import (
    ProcessGroup,
    environment,
    exclusive_supervisor,
    free_port,
    program,
    rotate,
    sleep,
)
from fedfomo.errors import require

Notify = Callable[[str], None]

RESTART = 5.0  # seconds before a process is started again; twice as long each further time
MAX_DEATHS = 5  # of a process, without an answer of the site between them
LONG = 3600.0  # seconds after which a death is no sign that the next is near


class _Beside:
    """The process that trains alone beside each experiment, once the server has asked for the first round of it."""

    def __init__(self, site: SiteFolder, around: Mapping[str, str]) -> None:
        self._site = site
        self._around = around
        self._begun: set[str] = set()  # experiments; what fails is not tried again
        self._group: ProcessGroup | None = None

    def look(self) -> None:
        """Start it if there is something to do."""
        latest = self._site.latest()
        is_due = latest.asked.exists() and not (latest.alone / "result.json").exists()
        is_busy = self._group is not None and self._group.exit_code is None
        if is_due and not is_busy and latest.experiment not in self._begun:
            self._begun.add(latest.experiment)
            around = {**self._around, EXPERIMENT_VARIABLE: latest.experiment}
            self._group = ProcessGroup([sys.executable, "-m", "fedfomo.deployment.site_alone"], around, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._group is not None:
            self._group.end()


class _Deaths:
    """Counts how often a process has died in a row: since it last did its work, or ran for long."""

    def __init__(self, site: SiteFolder) -> None:
        self._site = site
        self._number = 0
        self._last = time.monotonic()
        self._answered = self._answers()

    def count(self) -> int:
        """Count one more death, and return how many there are."""
        now, answered = time.monotonic(), self._answers()
        is_new = answered != self._answered or now - self._last > LONG
        self._number = 1 if is_new else self._number + 1
        self._last, self._answered = now, answered
        return self._number

    def _answers(self) -> tuple[str, int]:
        """Tell apart how far the site is: its experiment, and what is in its log of answers."""
        latest = self._site.latest()
        return latest.experiment, latest.scores.stat().st_size if latest.scores.exists() else 0


class SiteProcess:
    """The processes of one site, started again when they die."""

    def __init__(
        self,
        site: SiteFolder,
        data: Path | None,
        threads: int,
        notify: Notify,
        with_supernode: bool = False,
        alone: bool = False,
        device: str = "cpu",
    ) -> None:
        self._site = site
        self._card = site.card()
        self._notify = notify
        self._with_supernode = with_supernode
        self._alone = alone
        self._variables = {SITE_VARIABLE: str(site.path), THREADS_VARIABLE: str(threads), DEVICE_VARIABLE: device}
        if data is not None:
            self._variables[DATA_VARIABLE] = str(data.absolute())

    def run(self) -> None:
        """Keep the site going until this process is told to stop."""
        self._site.require_files()
        require_private(self._site.key, self._site.seal)
        with exclusive_supervisor(self._site.path, SITE_VARIABLE), ExitStack() as stack:
            commands, variables, log = {"node": [sys.executable, "-m", "fedfomo.deployment.resident_node"]}, {}, None
            if self._with_supernode:
                # The names of sockets are short: the site's folder may be too deep for one.
                place = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedfomo-"))
                variables = {WORKER_VARIABLE: f"{place}/worker"}
                log = stack.enter_context((self._site.path / "flower.log").open("ab"))
                worker = [sys.executable, "-m", "fedfomo.deployment.site_client"]
                commands = {"SuperNode": self._supernode(), "worker": worker}
            around = environment(self._site.path / "flower", {**self._variables, **variables})
            beside = stack.enter_context(_Beside(self._site, around)) if self._alone else None
            self._keep(commands, around, log, beside)

    def _keep(
        self,
        commands: Mapping[str, list[str]],
        around: Mapping[str, str],
        log: IO[bytes] | None,
        beside: _Beside | None,
    ) -> None:
        running = {what: ProcessGroup(command, around, log) for what, command in commands.items()}
        says = "site.log" if log is None else log.name
        deaths = {what: _Deaths(self._site) for what in commands}
        try:
            while True:
                sleep(0.5)
                if beside is not None:
                    beside.look()
                if log is not None:
                    rotate(Path(log.name))
                for what in [what for what, group in running.items() if group.exit_code is not None]:
                    code, number = running[what].exit_code, deaths[what].count()
                    running[what].end()
                    gone = f"the {what} ended with {code}"
                    require(number < MAX_DEATHS, f"{gone}, {number} times without an answer; {says} may say why")
                    self._notify(f"{gone}: starting it again; {says} may say why")
                    sleep(RESTART * 2 ** (number - 1))
                    running[what] = ProcessGroup(commands[what], around, log)
        finally:
            for group in running.values():
                group.end()

    def _supernode(self) -> list[str]:
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
