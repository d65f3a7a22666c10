"""The process of a site that stays: it has torch and the data, and does the work."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

import torch

from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.settings import DATA_VARIABLE, SITE_VARIABLE, THREADS_VARIABLE, WORKER_VARIABLE, SiteFolder
from fedfomo.deployment.site_client import SiteClient
from fedfomo.deployment.worker_ipc import receive


class Worker:
    """Opens orders, does them, and seals the answers."""

    def __init__(self, site: SiteFolder, data: Path | None) -> None:
        self._server = site.card().server_seal
        self._sealer = MessageCipher.read(site.seal)
        self._desk = SiteClient(site, data)

    @classmethod
    def here(cls) -> Worker:
        """Return the worker of the site that the environment names."""
        site = SiteFolder(Path(os.environ[SITE_VARIABLE]))
        data = os.environ.get(DATA_VARIABLE)
        torch.set_num_threads(int(os.environ.get(THREADS_VARIABLE, "1")))
        form = "%(asctime)s %(levelname)s %(message)s"
        logging.basicConfig(filename=site.path / "site.log", level=logging.INFO, format=form)
        return cls(site, Path(data) if data else None)

    def carry_out(self, sealed: bytes, until: float = math.inf) -> bytes:
        """Do what a sealed order says and return the sealed answer, if it is wanted still."""
        order = self._sealer.open(self._server, sealed, Purpose.ORDER)
        return self._sealer.seal(self._server, self._desk.carry_out(order, until), Purpose.ANSWER)


if __name__ == "__main__":
    receive(Path(os.environ[WORKER_VARIABLE]), Worker.here().carry_out)
