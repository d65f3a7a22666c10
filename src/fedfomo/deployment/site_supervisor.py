"""`fedfomo deploy site`: a SuperNode, kept going until it is stopped."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fedfomo.deployment.settings import DATA_VARIABLE, SITE_VARIABLE, THREADS_VARIABLE, WORKER_VARIABLE, SiteFolder
from fedfomo.deployment.subprocesses import ProcessGroup, alone, environment, free_port, program

RESTART = 5.0  # seconds before a process is started again; the server has to notice first that a SuperNode was gone


class SiteProcess:
    """The processes of one site: a SuperNode, which brings orders, and a worker, which carries them out."""

    def __init__(self, site: SiteFolder, data: Path | None, threads: int, tell: Callable[[str], None]) -> None:
        self._site = site
        self._card = site.card()
        self._tell = tell
        self._variables = {SITE_VARIABLE: str(site.path), THREADS_VARIABLE: str(threads)}
        if data is not None:
            self._variables[DATA_VARIABLE] = str(data.absolute())

    def run(self) -> None:
        """Keep both going until this process is told to stop."""
        # The names of sockets are short: the site's folder may be too deep for one.
        with (
            alone(self._site.path, SITE_VARIABLE),
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
                        self._tell(f"the {what} ended with {code}: starting it again; {log.name} says why")
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
    return [sys.executable, "-m", "fedfomo.deployment.site_worker"]
