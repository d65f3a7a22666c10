"""What a reader has to know beside the figures of a report: what is unfinished, missing, or left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedfomo.errors import InputError
from fedfomo.report.data import ClientFacts, FinalResult
from fedfomo.runs.description import describe_run
from fedfomo.runs.own_sites import way_to_resume
from fedfomo.runs.records import RunRecord
from fedfomo.simulation.problem import FederatedProblem


def stopped_early(record: RunRecord | None, planned: int, completed: int) -> list[str]:
    """Say where a run ended early, and of which round its models are."""
    if record is None or (record.best_round is None and completed == planned):
        return []
    early = (
        f"Stopped after {completed} of {planned} rounds, without a gain on validation data. "
        if completed < planned
        else ""
    )
    of = f"round {record.best_round}, the best on validation data" if record.best_round else "the last update"
    return [f"{early}Models are those of {of}."]


def unfinished(folder: Path, is_finished: bool) -> list[str]:
    """Say how to go on with a run that has not ended, in case nobody is computing it."""
    if is_finished:
        return []
    way_on = f"If it was stopped, {way_to_resume(folder)} goes on."
    return [f"This run is not finished: it is being computed, or was stopped. {way_on}"]


def missing_data(
    data: FederatedProblem | InputError | None, results: Mapping[str, FinalResult], clients: Sequence[ClientFacts]
) -> list[str]:
    """Say what a report lacks without the run's data, and why they are not there."""
    missing = ["intervals are unpaired"] if any(ended.examples is None for ended in results.values()) else []
    missing += ["label mixes are missing"] if all(client.train_labels is None for client in clients) else []
    missing += ["models are not tried on each other's targets"] if not _is_crossed(results) else []
    reason = f" ({data})" if isinstance(data, InputError) else ""
    return [f"The run's data are not at hand here{reason}: {', '.join(missing)}."] if missing else []


def _is_crossed(results: Mapping[str, FinalResult]) -> bool:
    return any(ended.examples is not None and ended.examples.cross is not None for ended in results.values())


def low_bar(local: Path | None) -> list[str]:
    """Say where Local had fewer rounds to train in than a client that is really alone."""
    asked = describe_run(local) if local else None
    if asked is None or (asked.participation == 1 and asked.dropout == 0):
        return []
    return [
        f"Local trained only when a client was drawn and answered (participation {asked.participation}, chance of"
        f" dropping out {asked.dropout}); a client that is really alone trains in every round, so gains over"
        " Local are too large."
    ]


def left_out(others: Sequence[Path]) -> list[str]:
    """Say which runs of a comparison are left out since their clients were others."""
    if not others:
        return []
    names = ", ".join(other.name for other in others)
    return [f"Left out, since the data set or its latent groups changed within the comparison: {names}."]
