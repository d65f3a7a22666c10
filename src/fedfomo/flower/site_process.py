"""`fedfomo deploy site`: a SuperNode, kept going until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedfomo.flower.processes import Group, environment, free_port, program
from fedfomo.flower.settings import SiteFolder

RESTART = 5.0  # seconds before a SuperNode is started again; the server has to notice first that it was gone


class SiteProcess:
    """The processes of one site."""

    def __init__(self, site: SiteFolder, data: Path | None, threads: int, tell: Callable[[str], None]) -> None:
        self._site = site
        self._card = site.card()
        self._tell = tell
        where = {"FEDFOMO_DATA": str(data.absolute())} if data else {}
        self._environment = environment(
            site.path / "flower", FEDFOMO_SITE=str(site.path), FEDFOMO_THREADS=str(threads), **where
        )

    def run(self) -> None:
        """Keep the SuperNode going until this process is told to stop."""
        with (self._site.path / "flower.log").open("ab") as log:
            while True:
                node = Group(self._command(), self._environment, log)
                try:
                    while node.exit_code is None:
                        time.sleep(0.5)
                finally:
                    node.end()
                self._tell(f"the SuperNode ended with {node.exit_code}: starting it again")
                time.sleep(RESTART)

    def _command(self) -> list[str]:
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
