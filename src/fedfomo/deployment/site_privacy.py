"""A site's differential privacy: its own decision and its own bill, which no order of a server can change.

The server says how to train; the site says with how much noise, and stops when its budget is spent. What was looked at
is on the bill, on disk, before anything that came of it is kept or sent. Code that whoever controls the server lets
Flower start at the site is no order and knows no bill; and the bill is that of one folder: another starts at 0.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from fedfomo.core.data import ClientData
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.deployment.privacy_ledger import settled, write_bill
from fedfomo.deployment.settings import SiteFolder
from fedfomo.privacy.accountant import Ledger, added
from fedfomo.privacy.private_data import BudgetTracker
from fedfomo.privacy.summary import describe_privacy

if TYPE_CHECKING:
    from fedfomo.privacy.engine import PrivacyEngine

log = logging.getLogger(__name__)


class SitePrivacy:
    """What a site has settled about its records, and what it has spent in this federation, as of one order."""

    def __init__(self, site: SiteFolder) -> None:
        self._site = site
        self._settings, self._bill = settled(site)

    @property
    def is_on(self) -> bool:
        """Whether anything is private here."""
        return self._settings.is_on

    def engine(self, sgd: Sgd, rounds: int, model: Model, data: ClientData) -> PrivacyEngine:
        """Return what protects the records; refuse what no noise would make private."""
        from fedfomo.privacy.engine import PrivacyEngine  # takes as long to import as torch, which few sites need

        engine = PrivacyEngine.of(self._settings, sgd, [len(data.train)], rounds)
        engine.check(model, [data])
        return engine

    @contextmanager
    def account(self, engine: PrivacyEngine) -> Generator[BudgetTracker]:
        """Add one order to what was paid so far; when this closes, however it does, the order is paid."""
        if self._bill.fault is not None:
            log.warning("%s", self._bill.fault)
        tracker = engine.tracker(0, 0, 0, self._bill.looks)
        try:
            yield tracker
        finally:
            looks = added(self._bill.looks, tracker.ledger)
            spent = describe_privacy({0: engine.spent(looks)}, engine.privacy)
            write_bill(self._site, replace(self._bill, looks=looks), spent)

    def bill(self) -> Ledger:
        """Return what was paid so far."""
        return self._bill.looks

    def note_unprotected(self, round: int) -> None:
        """Put a round that leaves without noise on the bill, before it does."""
        if round not in self._bill.unprotected:
            write_bill(self._site, replace(self._bill, unprotected=self._bill.unprotected | {round}), [])
