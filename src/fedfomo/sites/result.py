"""What a federation brought: models, scores, matrices and notes by site, and what can be made of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedfomo.core.metrics import Score
from fedfomo.core.round import CommunicationCost
from fedfomo.errors import InputError, require, unknown
from fedfomo.io import to_json, write_atomically
from fedfomo.privacy.accountant import EpsilonSpent, describe_privacy
from fedfomo.report.build import build_report_data
from fedfomo.report.data import ReportData
from fedfomo.report.from_run import load
from fedfomo.report.page import write_report
from fedfomo.report.text import contributors_of
from fedfomo.runs.federated_statistics import Scaling
from fedfomo.runs.final_models import load_models
from fedfomo.runs.frame import frame_of
from fedfomo.runs.records import RunRecord
from fedfomo.runs.site_data import Data, Site
from fedfomo.sites.seed_runs import RunKeeper, SeedRuns
from fedfomo.sites.serve import Served, models_of, serve_site

T = TypeVar("T")


@dataclass(frozen=True)
class FederationResult:
    """What a federation brought to each site."""

    method: str
    options: Mapping[str, Any]
    sites: tuple[str, ...]
    seed: int
    models: Mapping[str, nn.Module]
    scores: Mapping[str, Score]  # of these models, on each site's test examples
    local_scores: Mapping[str, Score]  # of a model trained at the site alone, in every round
    affinity: Tensor | None  # who values whom: receiver × giver, in the order of `sites`
    mixing: Tensor | None  # who has learnt from whom, in the same order; a row adds up to the rounds that mixed
    traffic: CommunicationCost
    notes: tuple[str, ...]
    folder: Path  # of the method's run; without `out`, it lasts as long as this object
    spent: Mapping[str, EpsilonSpent] | None = None  # ε of each site's records; None: nothing was private
    further_seeds: Mapping[int, FederationResult] = field(default_factory=dict[int, "FederationResult"])
    _runs: SeedRuns = field(kw_only=True, repr=False)

    @property
    def scaling(self) -> Scaling | None:
        """What was done to all inputs, and is to be done to others before a model meets them; None: nothing."""
        return self._runs.scaling

    @property
    def gains(self) -> dict[str, float]:
        """What each site's metric gained against training alone."""
        return {site: self.scores[site].metric - self.local_scores[site].metric for site in self.sites}

    def __str__(self) -> str:
        return "\n".join([*self._without_crossing.lines, *self.notes])

    @cached_property
    def report_data(self) -> ReportData:
        """What the report shows; computed when it is asked for, since every model is tried on every site's test."""
        return self._build(crosses=True)

    @cached_property
    def _without_crossing(self) -> ReportData:
        return self._build(crosses=False)

    def _build(self, crosses: bool) -> ReportData:
        runs = self._runs
        try:
            return build_report_data(load(self.folder, (), runs.problem, runs.algorithms, crosses))
        except Exception as error:  # whatever a user's own metric raises: scores at least can be shown
            reason = InputError(f"trying the models failed ({type(error).__name__}: {error})")
            warnings.warn(f"the report holds scores alone, since {reason}", stacklevel=2)
            return build_report_data(load(self.folder, (), reason, runs.algorithms))

    def serve(self, new_site: Site | Data) -> Served:
        """Weigh the models for a site that was not there, in one pass over its validation data.

        `new_site` is what `federate` takes for a site, or its validation data alone.
        """
        runs = self._runs
        personal = runs.problem.model_of(runs.prepared[self.folder].algorithm)
        return serve_site(personal, models_of(self.folder, personal, self.sites), new_site, self.scaling)

    def frame(self) -> Any:
        """Return every figure of every site, round, method and seed as a tidy pandas DataFrame."""
        return frame_of([folder for own in (self, *self.further_seeds.values()) for folder in own._runs.prepared])

    def report(self, path: str | Path = "report.html") -> Path:
        """Write one HTML file that shows who benefits from whom, and whether federating pays for each site."""
        return write_report(self.report_data, Path(path))

    def save(self, folder: str | Path) -> Path:
        """Write one safetensors file per site, loadable with `load_state_dict`, a summary, and the report."""
        folder = Path(folder)
        require(not folder.is_file(), f"{folder} is a file: give a folder for the models, the summary and the report")
        folder.mkdir(parents=True, exist_ok=True)
        for site, module in self.models.items():
            tensors = {name: tensor.contiguous().clone() for name, tensor in module.state_dict().items()}
            save_file(tensors, folder / f"{site}.safetensors")
        summary = {
            "method": self.method,
            "options": dict(self.options),
            "sites": {
                site: {"federated": self.scores[site].metric, "alone": self.local_scores[site].metric}
                for site in self.sites
            },
            "affinity": None if self.affinity is None else self.affinity.tolist(),
            "taken": None if self.mixing is None else self.mixing.tolist(),
            "notes": self.notes,
        }
        write_atomically(folder / "summary.json", to_json(summary, indent=1).encode())
        self.report(folder / "report.html")
        return folder

    def contributors(self, site: str) -> dict[str, float]:
        """Return from which others a site took models, and their shares of that; the largest first."""
        if site not in self.sites:
            raise unknown("site", site, self.sites)
        if self.mixing is None:
            return {}
        return contributors_of(self.mixing.tolist(), self.sites, self.sites.index(site))


def result_of(runs: SeedRuns, keeper: RunKeeper, records: Mapping[Path, RunRecord]) -> FederationResult:
    """Collect what the runs of one seed, which are finished, have left."""
    (folder, run), *_ = runs.prepared.items()
    record = records[folder]
    alone = next(own for own in reversed([*records.values()]) if own.method == "local")
    personal = runs.problem.model_of(run.algorithm)
    thetas = load_models(folder, personal, record)
    require(thetas is not None, f"{folder} lacks models of a finished run: delete it, and it is run again")
    notes = [f"note: {note}" for note in runs.notes]
    notes += [
        f"note: {runs.names[client]}'s model was refused in {number} rounds, most likely because it was not finite"
        for client, number in sorted(record.refusals.items())
    ]
    if record.best_round is not None:
        notes.append(f"note: models are those of round {record.best_round}, the best on validation data")
    if record.spent is not None:
        notes += [f"privacy: {sentence}" for sentence in describe_privacy(record.spent, runs.problem.privacy)]
    return FederationResult(
        method=run.method,
        options=run.options,
        sites=runs.names,
        seed=run.seed,
        models={name: personal.network(theta) for name, theta in zip(runs.names, thetas or [], strict=True)},
        scores=_by_name(runs.names, record.after_update),
        local_scores=_by_name(runs.names, alone.after_update),
        affinity=_matrix(record.affinity),
        mixing=_matrix(record.taken),
        traffic=record.traffic,
        notes=tuple(notes),
        folder=folder,
        spent=None if record.spent is None else _by_name(runs.names, record.spent),
        _runs=replace(runs, keeper=keeper),
    )


def _by_name(names: Sequence[str], values: Mapping[int, T]) -> dict[str, T]:
    return {name: values[client] for client, name in enumerate(names)}


def _matrix(rows: list[list[float]] | None) -> Tensor | None:
    return None if rows is None else torch.tensor(rows, dtype=torch.float64)
