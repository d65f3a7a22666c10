"""What a site keeps of every round in its own folder: its model, how that does, and how the federation trains."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.client_round import ClientOutcome
from fedfomo.core.data import Examples
from fedfomo.core.messages import Flat
from fedfomo.core.model import Model, Score
from fedfomo.deployment.protocol import bounded
from fedfomo.deployment.settings import SiteFolder
from fedfomo.deployment.site_scores import add_line
from fedfomo.deployment.site_task import Task
from fedfomo.errors import InputError
from fedfomo.io import to_json, write_atomically

log = logging.getLogger(__name__)


def keep_model(site: SiteFolder, task: Task, outcome: ClientOutcome) -> None:
    """Put down the model that the site would use now, ready for `load_state_dict`."""
    theta, score = outcome.personalised, outcome.score_after_update
    assert theta is not None  # noqa: S101 - the caller has looked
    task.model.kept_values = outcome.kept_values
    models = site.models
    models.mkdir(mode=0o700, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in task.model.state_dict(theta).items()}
    write_atomically(models / "personalised.safetensors", save(state))
    facts = {
        "round": task.header["round"],
        "rounds": task.header["rounds"],
        "score": score and score.as_dict(),
        **({"figures": []} if task.trains else examined(task.model, theta, task.data.test)),
    }
    write_atomically(models / "personalised.json", to_json(facts, indent=1).encode())


def examined(model: Model, theta: Tensor, test: Examples) -> dict[str, Any]:
    """Return what the site's report needs for intervals: figures of single examples, or a metric of sets resampled."""
    found: dict[str, Any] = {"figures": model.figures(theta, test).tolist()}
    if model.metrics.is_per_example:
        return found
    from fedfomo.report.per_example import resamples_of  # needed at the end only, and it imports much

    try:
        return {**found, "resamples": resamples_of(model, theta, test, client=0)}
    except InputError as error:  # the site's own metric may fail on a resample: the score stands without an interval
        log.warning("no interval of the score: %s", error)
        return {**found, "resamples": []}


def note_scores(site: SiteFolder, task: Task, outcome: ClientOutcome, answer: Flat) -> None:
    """Log how this site's models do: here, whatever of it leaves."""
    scores = {"after_update": outcome.score_after_update, "after_training": outcome.score_after_training}
    line = {
        "round": task.header["round"],
        "kind": task.header["kind"],
        "uploads": outcome.has_upload,
        "bytes_up": sum(tensor.nbytes for tensor in answer.values()),
        "bytes_down": sum(tensor.nbytes for tensor in messages.pack(task.download).values()),
        **{part: score and score_to_dict(score) for part, score in scores.items()},
    }
    add_line(site, line)


def keep_training(site: SiteFolder, task: Task) -> None:
    """Put down how the federation trains, for whoever trains alone beside it."""
    names = ("rounds", "seed", "training", "method", "channels_last")
    metrics = task.model.metrics
    measured = {"metric": metrics.leading, "is_of_sets": not metrics.is_per_example}
    facts = {**{name: task.header[name] for name in names}, **measured}
    write_atomically(site.asked, json.dumps(facts, indent=1).encode())


def score_to_dict(score: Score) -> dict[str, Any]:
    """Return a score as plain values; what is beyond the bounds of the server becomes undefined."""
    metrics = {name: bounded(value) for name, value in score.metrics.items()}
    return replace(score, loss=bounded(score.loss), metric=bounded(score.metric), metrics=metrics).as_dict()


def progress(task: Task, outcome: ClientOutcome) -> str:
    """Say in a sentence what was done."""
    score, told = outcome.score_after_update, ""
    if score is not None and not math.isnan(score.metric):
        told = f"; the model of this site scores {score.metric:.3f} on its {score.num_examples} test records"
    if task.trains:
        return f"round {task.header['round'] + 1} of {task.header['rounds']} is done{told}"
    name = task.header.get("experiment")
    place = f"experiments/{name}/models" if name else "models"
    return f"all {task.header['rounds']} rounds are complete{told}; it is in {place}/personalised.safetensors"
