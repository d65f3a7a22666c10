"""What a site lets the server ask of it: its own decision, in `policy.toml`, looked at before every request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

from fedfomo.deployment.settings import FIRST, SiteFolder
from fedfomo.errors import listed, require
from fedfomo.io import printable
from fedfomo.runs.config_io import read_toml

HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class SitePolicy:
    """Limits of a site; what is left out has none."""

    methods: tuple[str, ...] = ()
    """Methods that the site takes part in; none: in all."""
    experiments: tuple[str, ...] = ()
    """Experiments that the site takes part in, of which the first is called federation; none: in all."""
    max_rounds: int = 0
    """Most rounds of a federation; 0: any number."""
    max_epochs: int = 0
    """Most epochs of training in a round; 0: any number."""
    min_peers: int = 0
    """Fewest other sites that are asked in the same round, as the server says."""
    report_scores: bool = True
    """Whether test scores are sent to the server."""
    hours: str = ""
    """Hours of the day, by this machine's clock, in which the site trains, such as 20:00-06:00."""

    def __post_init__(self) -> None:
        for name in ("max_rounds", "max_epochs", "min_peers"):
            require(getattr(self, name) >= 0, f"{name} must be at least 0, not {getattr(self, name)}")
        is_clock = not self.hours or HOURS.fullmatch(self.hours) is not None
        require(is_clock, f"hours must be like 20:00-06:00, not '{self.hours}'")

    def check(self, header: dict[str, Any], now: datetime) -> None:
        """Refuse a request beyond these limits, in words that the server hears too."""
        allowed = listed(self.methods)
        is_allowed = not self.methods or header["method"] in self.methods
        require(is_allowed, f"this site's policy refuses the method '{header['method']}': it takes part in {allowed}")
        experiment = header.get("experiment") or FIRST
        is_agreed = not self.experiments or experiment in self.experiments
        agreed = f"it takes part in {listed(self.experiments)}"
        require(is_agreed, f"this site's policy refuses the experiment '{printable(str(experiment))}': {agreed}")
        for limit, asked, what in (
            (self.max_rounds, header["rounds"], "rounds"),
            (self.max_epochs, header["training"]["epochs"], "epochs a round"),
        ):
            require(not limit or asked <= limit, f"this site's policy refuses {asked} {what}: {limit} at most")
        peers = header.get("peers", 0)
        fewer = f"this site's policy refuses a round with {peers} other sites: {self.min_peers} at least"
        require(peers >= self.min_peers, fewer)
        closed = f"this site's policy lets it train from {self.hours.replace('-', ' to ')}, and here it is {now:%H:%M}"
        require(header["kind"] == "finish" or self._is_open(now.time()), closed)

    def _is_open(self, now: time) -> bool:
        if not self.hours:
            return True
        start, end = (time.fromisoformat(moment) for moment in self.hours.split("-"))
        return start <= now < end if start <= end else now >= start or now < end


def read_policy(site: SiteFolder) -> SitePolicy:
    """Read a site's policy; without a file there are no limits."""
    return read_toml(site.policy, SitePolicy) if site.policy.exists() else SitePolicy()
