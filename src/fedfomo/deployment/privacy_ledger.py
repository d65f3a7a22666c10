"""A site's differential privacy: its own decision and its own ledger, which no job of a server can change.

The server says how to train; the site says with how much noise, and stops when its budget is spent. Noisy queries are
in the ledger, on disk, before anything that came of them is kept or sent; so are answers that left without noise. A
site that has taken part and has no ledger has lost it, and nothing leaves until somebody says what is to be done: a
lost file is no decision. Code that whoever controls the server lets Flower start at the site is no job and knows no
ledger; and the ledger is that of one folder: another starts at 0. No torch at import: commands read this.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedfomo.deployment.settings import SiteFolder, SiteProtection
from fedfomo.errors import reading, require
from fedfomo.io import PRIVATE, write_atomically
from fedfomo.privacy.accountant import Ledger, added, describe_privacy, from_rows, to_rows

if TYPE_CHECKING:
    from fedfomo.core.data import ClientData
    from fedfomo.core.local_training import GradientTrainer
    from fedfomo.core.model import Model
    from fedfomo.privacy.engine import PrivacyEngine
    from fedfomo.privacy.private_data import BudgetTracker


@dataclass(frozen=True)
class SiteLedger:
    """What a site has paid, and where it did not."""

    queries: Ledger
    unprotected: frozenset[int | str] = frozenset()
    """Rounds whose answers left without noise; the last update is one, and those of experiments bear their names."""

    @property
    def was_protected(self) -> bool:
        """Whether it was written by a site with privacy on, be it that it never had anything to pay."""
        return bool(self.queries) or not self.unprotected

    @property
    def fault(self) -> str | None:
        """Say why no ε holds, if some answers are on no ledger."""
        number = len(self.unprotected)
        return f"no guarantee: {number} answer{'s' if number > 1 else ''} left without noise" if number else None


def load_ledger(site: SiteFolder) -> tuple[SiteProtection, SiteLedger]:
    """Read what a site has settled and paid; refuse where one of the two is lost."""
    settings, ledger, toml = site.privacy(), _read(site), site.privacy_settings
    knowingly = f"or write off = true into {toml}, and from then on models leave as they were trained"
    is_lost = ledger is None and site.has_taken_part and not settings.off
    require(not is_lost, f"{site.ledger} is missing, though this site has taken part: restore it, {knowingly}")
    is_dropped = ledger is not None and ledger.was_protected and not settings.is_on and not settings.off
    before = f"{site.ledger} says that this site's records were protected"
    require(not is_dropped, f"{before}, and {toml} is missing or gives no noise: restore it, {knowingly}")
    return settings, ledger or SiteLedger({})


def write_ledger(site: SiteFolder, ledger: SiteLedger, spent: Sequence[str]) -> None:
    """Put a ledger on disk, with what it comes to in words; no ε is claimed that some rounds are left out of."""
    content = {
        "spent": spent if ledger.fault is None else [ledger.fault],
        "looks": to_rows(ledger.queries),
        "unprotected": sorted(ledger.unprotected, key=lambda name: (isinstance(name, str), name)),
    }
    write_atomically(site.ledger, json.dumps(content, indent=1, ensure_ascii=False).encode(), mode=PRIVATE)


def _read(site: SiteFolder) -> SiteLedger | None:
    """Read the ledger; one that cannot be read is no reason to begin a new one."""
    if not site.ledger.exists():
        return None
    with reading(site.ledger, "restore it, for without it nothing may leave"):
        content = json.loads(site.ledger.read_bytes())
        return SiteLedger(from_rows(content["looks"]), frozenset(content.get("unprotected", ())))


log = logging.getLogger(__name__)


class SitePrivacy:
    """What a site has settled about its records, and what it has spent in this federation, as of one request."""

    def __init__(self, site: SiteFolder) -> None:
        self._site = site
        self._settings, self._ledger = load_ledger(site)

    @property
    def is_on(self) -> bool:
        """Whether anything is private here."""
        return self._settings.is_on

    def engine(self, trainer: GradientTrainer, rounds: int, model: Model, data: ClientData) -> PrivacyEngine:
        """Return what protects the records; refuse what no noise would make private."""
        from fedfomo.privacy.engine import PrivacyEngine  # takes as long to import as torch, which few sites need

        engine = PrivacyEngine.of(self._settings, trainer, [len(data.train)], rounds)
        engine.check(model, [data])
        return engine

    @contextmanager
    def account(self, engine: PrivacyEngine) -> Generator[BudgetTracker]:
        """Add one request to what was paid so far; when this closes, however it does, the request is paid."""
        if self._ledger.fault is not None:
            log.warning("%s", self._ledger.fault)
        tracker = engine.tracker(0, 0, 0, self._ledger.queries)
        try:
            yield tracker
        finally:
            queries = added(self._ledger.queries, tracker.ledger)
            spent = describe_privacy({0: engine.spent(queries)}, engine.privacy)
            write_ledger(self._site, replace(self._ledger, queries=queries), spent)

    def note_unprotected(self, round: int) -> None:
        """Put a round that leaves without noise on the ledger, before it does."""
        name = f"{self._site.experiment} {round:05d}" if self._site.experiment else round
        if name not in self._ledger.unprotected:
            write_ledger(self._site, replace(self._ledger, unprotected=self._ledger.unprotected | {name}), [])
