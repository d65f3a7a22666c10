"""A site's differential privacy: its own decision and its own bill, which no order of a server can change.

The server says how to train; the site says with how much noise, and stops when its budget is spent. What was looked at
is on the bill, on disk, before anything that came of it is kept or sent. Code that whoever controls the server lets
Flower start at the site is no order and knows no bill; and the bill is that of one folder: another starts at 0.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedfomo.errors import reading
from fedfomo.examples import ClientData
from fedfomo.flower.settings import SiteFolder
from fedfomo.model import Model
from fedfomo.privacy.accounting import Bill, added, from_rows, to_rows
from fedfomo.privacy.sealed import Meter
from fedfomo.privacy.statement import privacy_sentences
from fedfomo.training import Sgd
from fedfomo.writing import PRIVATE, write_atomically

if TYPE_CHECKING:
    from fedfomo.privacy.guard import Guard


class SitePrivacy:
    """What a site has settled about its records, and what it has spent in this federation."""

    def __init__(self, site: SiteFolder) -> None:
        self._settings = site.privacy()
        self._path = site.bill

    @property
    def is_on(self) -> bool:
        """Whether anything is private here."""
        return self._settings.is_on

    def guard(self, sgd: Sgd, rounds: int, model: Model, data: ClientData) -> Guard:
        """Return what stands before the records; refuse what no noise would make private."""
        from fedfomo.privacy.guard import Guard  # takes as long to import as torch, which few sites need

        guard = Guard.of(self._settings, sgd, [len(data.train)], rounds)
        guard.check(model, [data])
        return guard

    @contextmanager
    def account(self, guard: Guard, paid: Bill) -> Generator[Meter]:
        """Add one order to what was paid so far; when this closes, however it does, the order is paid."""
        meter = guard.meter(0, 0, 0, paid)
        try:
            yield meter
        finally:
            self._write(guard, added(paid, meter.bill))

    def bill(self) -> Bill:
        """Read what was paid so far; a bill that cannot be read is no reason to begin a new one."""
        if not self._path.exists():
            return {}
        with reading(self._path, "restore it, for without it nothing may leave"):
            return from_rows(json.loads(self._path.read_bytes())["looks"])

    def _write(self, guard: Guard, bill: Bill) -> None:
        sentences = privacy_sentences({0: guard.spent(bill)}, guard.privacy)
        content = {"spent": sentences, "looks": to_rows(bill)}
        write_atomically(self._path, json.dumps(content, indent=1, ensure_ascii=False).encode(), mode=PRIVATE)
