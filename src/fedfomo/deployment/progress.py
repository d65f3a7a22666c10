"""What a server tells while it runs: who is on line, and every round as it is complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedfomo.deployment.settings import FederationFolder
from fedfomo.deployment.status import faults_in, waiting_for
from fedfomo.io import read_json


class Progress:
    """Reads the server's status, and tells what is new."""

    def __init__(self, folder: FederationFolder, notify: Callable[[str], None]) -> None:
        self._folder = folder
        self._notify = notify
        self._told: Any = self._status().get("time")

    def tell(self) -> None:
        """Tell what has happened since."""
        status = self._status()
        if status.get("time") == self._told:
            return
        self._told = status.get("time")
        for sentence in _news(status):
            self._notify(sentence)

    def _status(self) -> dict[str, Any]:
        path = self._folder.status
        return read_json(path, "it is written anew after the next round") if path.exists() else {}


def _news(status: dict[str, Any]) -> list[str]:
    done, rounds = status["rounds_done"], status["rounds"]
    if "missing" in status:
        return [waiting_for(status)]
    answered = f"{len(status['answered'])} of {len(status['asked'])} sites answered in {status['seconds']:.1f} s"
    again = status.get("again")
    first = f"round {done} of {rounds}: {answered}" if again is None else f"round {done + 1} again: {again}"
    return [first, *(f"  {fault}" for fault in faults_in(status))]
