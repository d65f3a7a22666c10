"""A site's bill on disk: what was looked at with noise, and which answers left without any.

Every answer leaves a line on it, protected or not. So a site that has taken part and has no bill has lost it, and
nothing leaves until somebody says what is to be done: a lost file is no decision. No torch here: commands read this.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from fedfomo.deployment.settings import SiteFolder, SiteProtection
from fedfomo.errors import reading, require
from fedfomo.io import PRIVATE, write_atomically
from fedfomo.privacy.accountant import Ledger, from_rows, to_rows


@dataclass(frozen=True)
class SiteBill:
    """What a site has paid, and where it did not."""

    looks: Ledger
    unprotected: frozenset[int] = frozenset()  # rounds whose answers left without noise; the last update is one

    @property
    def was_protected(self) -> bool:
        """Whether it was written by a site with privacy on, be it that it never had anything to pay."""
        return bool(self.looks) or not self.unprotected

    @property
    def fault(self) -> str | None:
        """Say why no ε holds, if some answers are on no bill."""
        number = len(self.unprotected)
        return f"no guarantee: {number} answer{'s' if number > 1 else ''} left without noise" if number else None


def settled(site: SiteFolder) -> tuple[SiteProtection, SiteBill]:
    """Read what a site has settled and paid; refuse where one of the two is lost."""
    settings, bill, toml = site.privacy(), _read(site), site.privacy_settings
    knowingly = f"or write off = true into {toml}, and from then on models leave as they were trained"
    is_lost = bill is None and site.has_taken_part and not settings.off
    require(not is_lost, f"{site.bill} is missing, though this site has taken part: restore it, {knowingly}")
    is_dropped = bill is not None and bill.was_protected and not settings.is_on and not settings.off
    before = f"{site.bill} says that this site's records were protected"
    require(not is_dropped, f"{before}, and {toml} is missing or gives no noise: restore it, {knowingly}")
    return settings, bill or SiteBill({})


def write_bill(site: SiteFolder, bill: SiteBill, spent: Sequence[str]) -> None:
    """Put a bill on disk, with what it comes to in words; no ε is claimed that some rounds are left out of."""
    content = {
        "spent": spent if bill.fault is None else [bill.fault],
        "looks": to_rows(bill.looks),
        "unprotected": sorted(bill.unprotected),
    }
    write_atomically(site.bill, json.dumps(content, indent=1, ensure_ascii=False).encode(), mode=PRIVATE)


def _read(site: SiteFolder) -> SiteBill | None:
    """Read the bill; one that cannot be read is no reason to begin a new one."""
    if not site.bill.exists():
        return None
    with reading(site.bill, "restore it, for without it nothing may leave"):
        content = json.loads(site.bill.read_bytes())
        return SiteBill(from_rows(content["looks"]), frozenset(content.get("unprotected", ())))
