"""One plain sentence for each client: what federating brought it, and from whom it learnt."""

from __future__ import annotations

from collections.abc import Sequence

from fedfomo.errors import listed
from fedfomo.report.intervals import Estimate

LEAST_SHARE = 0.01  # who gave less is not named
MOST_NAMED = 4


def contributors_of(mixing: Sequence[Sequence[float]], names: Sequence[str], client: int) -> dict[str, float]:
    """Return from which others a client took models, and their shares of that, its own left out; the largest first."""
    row = {names[giver]: value for giver, value in enumerate(mixing[client]) if giver != client and value > 0}
    total = sum(row.values())
    return {giver: value / total for giver, value in sorted(row.items(), key=lambda item: -item[1])}


def site_sentence(
    name: str,
    local: Estimate | None,
    own: Estimate | None,
    gain: Estimate | None,
    contributors: dict[str, float],
    is_share: bool,
    num_test: int,
) -> str:
    """Say in one sentence what a client gained and from whom, or that it should keep its own model."""
    if own is None:
        why = f"its figure on {num_test} test examples is not finite" if num_test else "no test examples"
        return f"{name}: {why}, so nothing can be said"
    named = [(giver, share) for giver, share in contributors.items() if share >= LEAST_SHARE]
    taken = listed([f"{giver} {share:.0%}".replace("%", " %") for giver, share in named], MOST_NAMED)
    source = f"; of what it took from others: {taken}" if taken else ""
    if local is None or gain is None:
        return f"{name}: {figure(own.value, is_share)}{source}"
    course = f"{figure(local.value, is_share)} → {figure(own.value, is_share)}"
    change = with_interval(gain, is_share)
    if gain.is_below_zero:
        return f"{name}: federating does not pay, keep your own model ({course}, {change})"
    if gain.is_above_zero:
        return f"{name}: {course} ({change}){source}"
    why = "too little test data" if gain.has_interval else "no interval can be given"
    return f"{name}: {course} ({change}, undecided: {why}){source}"


def with_interval(estimate: Estimate, is_share: bool) -> str:
    """Write a difference with its interval, whose middle it need not be; alone where there is no interval."""
    value, low, high = (figure(end, is_share, signed=True) for end in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]" if estimate.has_interval else value


def figure(value: float, is_share: bool, signed: bool = False) -> str:
    """Write a metric as people read it: shares in per cent with one digit, anything else with three."""
    sign = "+z" if signed else "z"  # z: what rounds to zero is not negative
    text = f"{100 * value:{sign}.1f}" if is_share else f"{value:{sign}.3g}"
    return text.replace("-", "−")
