"""What a reader asks first: when, whose data, what was sent, how private."""

from __future__ import annotations

from fedfomo.report.data import ReportInput


def about_run(source: ReportInput) -> list[tuple[str, str]]:
    """Return the facts of a run by what they are called, in the order in which they are shown."""
    found = [
        ("Date", source.date),
        ("Data", source.data),
        (f"{source.word.capitalize()}s", _clients(source)),
        ("Rounds", f"{len(source.lines)} of {source.rounds_planned}"),
        ("What was sent", _sent(source)),
        ("Privacy", _privacy(source)),
    ]
    return [(name, text) for name, text in found if text]


def _clients(source: ReportInput) -> str:
    held = {
        "training": [client.train for client in source.clients],
        "validation": [client.validation for client in source.clients],
        "test": [client.test for client in source.clients],
    }
    parts = [
        f"{_span(known)} {part}" for part, numbers in held.items() if (known := [n for n in numbers if n is not None])
    ]
    return f"{len(source.clients)}, each with {', '.join(parts)} cases"


def _span(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _sent(source: ReportInput) -> str:
    if source.algorithm is not None and source.algorithm.uploads_examples:
        what = "Models and training records: this method shares records"
    else:
        what = "Models only; no records"
    each = f" Each round and {source.word}: {source.algorithm.sends}." if source.algorithm else ""
    nothing = " This was a simulation on one machine: nothing left it." if source.is_simulated else ""
    return f"{what}.{_amounts(source)}{each}{nothing}"


def _amounts(source: ReportInput) -> str:
    """Say how much was sent, where that was counted."""
    up, down = ([line["traffic"][way] for line in source.lines] for way in ("bytes_up", "bytes_down"))
    if None in (*up, *down):
        return ""
    return f" {_bytes(sum(up))} from {source.word}s to the server, {_bytes(sum(down))} back."


def _privacy(source: ReportInput) -> str:
    facts = source.privacy
    if facts is None:
        return "No differential privacy: models were exchanged as they were."
    if facts.delta is None:
        return "Up to each site: it sets its own noise and tells nobody."
    largest = "; the largest of any client" if len(source.clients) > 1 else ""
    training, validation = (_epsilon(value) for value in (facts.training, facts.validation))
    return f"Training records {training}, validation records {validation}, δ {facts.delta}{largest}."


def _epsilon(value: float | None) -> str:
    return "without a guarantee" if value is None else f"ε {value:.3g}"


def _bytes(number: float) -> str:
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.{1 if number / size < 10 else 0}f} {name}"
    return f"{number:.0f} B"
