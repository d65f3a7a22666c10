"""Finished cells on features: one file a regime, one line of JSON a cell; and the settings that validation chose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.iclr2021.features.cells import (
    CONTENDERS,
    TUNING_REGIMES,
    TUNING_SEEDS,
    Contender,
    FeatureCell,
)
from fedfomo.errors import InputError, reading

TUNING = "tuning"


@dataclass(frozen=True)
class Choice:
    """A method's learning rate and options."""

    learning_rate: float
    options: Mapping[str, Any]

    def __str__(self) -> str:
        words = [f"rate {self.learning_rate:g}"]
        words += [f"{name.rstrip('_')} {value}" for name, value in self.options.items() if name != "num_downloads"]
        return ", ".join(words)


@dataclass(frozen=True)
class Trial:
    """One run of the search for settings."""

    regime: str
    contender: str
    seed: int
    choice: Choice
    validation: float  # accuracy in %


class Store:
    """The folder of finished cells."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: dict[str, list[dict[str, Any]]] = {}

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Keep one more line of a file."""
        kept = self.lines(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(line, separators=(",", ":"))
        with self._file(name).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        kept.append(json.loads(text))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file; one that a kill left unfinished is left out."""
        if name not in self._lines:
            path = self._file(name)
            with reading(path, "delete the line that is no JSON, and it is computed again"):
                text = path.read_text(encoding="utf-8") if path.exists() else ""
                whole = text[: text.rfind("\n") + 1]
                if whole != text:
                    path.write_text(whole, encoding="utf-8")
                self._lines[name] = [json.loads(line) for line in whole.splitlines()]
        return self._lines[name]

    def has(self, cell: FeatureCell) -> bool:
        """Tell whether a cell is finished, with the settings that are chosen now."""
        return self.get(cell) is not None

    def get(self, cell: FeatureCell) -> dict[str, Any] | None:
        """Return what is kept of a cell."""
        choice = self.choice(cell.contender)
        for line in self.lines(cell.regime.name):
            is_same = line["method"] == cell.contender.name and line["seed"] == cell.seed
            if is_same and Choice(line["learning_rate"], line["options"]) == choice:
                return line
        return None

    def trials(self) -> list[Trial]:
        """Return the runs of the search for settings."""
        return [
            Trial(
                line["regime"],
                line["method"],
                line["seed"],
                Choice(line["learning_rate"], line["options"]),
                line["validation"],
            )
            for line in self.lines(TUNING)
        ]

    def choice(self, contender: Contender) -> Choice:
        """Return the settings whose clients were best on their validation data, on average over regimes and seeds."""
        if contender.given is not None:
            return Choice(*contender.given)
        tuned = CONTENDERS[contender.tuned_as or contender.name]
        means = self.means(tuned)[: len(tuned.grid)]
        missing = [str(choice) for choice, mean in means if mean is None]
        if missing:
            raise InputError(f"settings of {tuned.name} are not tried yet ({'; '.join(missing)}): run `tune` first")
        best = max(means, key=lambda pair: pair[1] or 0.0)[0]  # the first of equals
        return Choice(best.learning_rate, {**best.options, **contender.fixed})

    def is_tuned(self, contender: Contender) -> bool:
        """Tell whether all settings are tried among which one is chosen for it."""
        tuned = CONTENDERS[contender.tuned_as or contender.name]
        return all(mean is not None for _, mean in self.means(tuned)[: len(tuned.grid)])

    def means(self, contender: Contender) -> list[tuple[Choice, float | None]]:
        """Return for each setting that is tried its mean validation accuracy in %, once all its runs are done."""
        done = {
            (trial.regime, trial.seed, str(trial.choice)): trial.validation
            for trial in self.trials()
            if trial.contender == contender.name
        }
        found: list[tuple[Choice, float | None]] = []
        for rate, options in (*contender.grid, *contender.further):
            choice = Choice(rate, options)
            regimes = [regime for regime in TUNING_REGIMES if contender.fits(regime)]
            values = [done.get((regime.name, seed, str(choice))) for regime in regimes for seed in TUNING_SEEDS]
            known = [value for value in values if value is not None]
            found.append((choice, fmean(known) if len(known) == len(values) else None))
        return found

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"
