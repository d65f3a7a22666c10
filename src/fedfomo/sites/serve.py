"""A site that took no part in a run: the mixture of the run's models for it.

FedFomo's weights (Eq. 3) compare models with the one that a client has. A new site has none, so the reference is the
plain mean of all sites' final models: what a server without any knowledge of the site would hand out. A model's weight
is how much lower its loss on the site's validation data is than the reference's, by its distance from the reference;
negative weights become 0, and the others add up to 1. Where no model does better than the mean, the mean is served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfomo.algorithms.fedfomo.core import first_order_weights, mixing_weights
from fedfomo.core.data import Examples
from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.example_checks import check_examples
from fedfomo.core.given_data import as_examples
from fedfomo.core.metrics import Score
from fedfomo.core.model import Model
from fedfomo.core.vectors import distances_from, mix
from fedfomo.errors import InputError, require
from fedfomo.runs.config import VALIDATION_FRACTION
from fedfomo.runs.federated_statistics import Scaling
from fedfomo.runs.final_models import load_models
from fedfomo.runs.records import read_record
from fedfomo.runs.site_data import Data, Site, client_data

NEW = "the new site"


@dataclass(frozen=True)
class Served:
    """What a federation has for a site that was not there."""

    model: nn.Module  # the mixture, ready for use
    weights: Mapping[str, float]  # of each site's model in the mixture; they add up to 1, or are all 0
    losses: Mapping[str, float]  # of each site's model on the validation data of the new one
    reference_loss: float  # of the mean of all models
    best: str  # the site whose single model has the lowest loss
    scores: Mapping[str, Score]  # "mixture", "mean" and "best" on test examples, if the site gave any

    def __str__(self) -> str:
        used = {site: weight for site, weight in self.weights.items() if weight > 0}
        ranked = sorted(used.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{site} {weight:.0%}" for site, weight in ranked)
        lines = [
            f"mixture: {shares}" if used else "mixture: the mean of all models; none alone does better",
            f"best single model: that of {self.best}, validation loss {self.losses[self.best]:.4f}"
            f" (mean of all models {self.reference_loss:.4f})",
        ]
        tested = {name: score for name, score in self.scores.items() if score.num_examples}
        if tested:
            figures = ", ".join(f"{name} {score.metric:.3f}" for name, score in tested.items())
            lines.append(f"on {tested['mixture'].num_examples} test examples: {figures}")
        return "\n".join(lines)


def serve_site(model: Model, thetas: Mapping[str, Tensor], site: Site | Data, scaling: Scaling | None = None) -> Served:
    """Weigh the models of a federation for a new site, in one pass over its validation data."""
    validation, test = _parts_of(site)
    if scaling is not None:
        validation, test = scaling.examples(validation), scaling.examples(test)
    require(len(validation) > 0, f"{NEW} has no validation examples to judge models by: give it some")
    names, models = list(thetas), list(thetas.values())
    reference = torch.stack([theta.double() for theta in models]).mean(dim=0).float()
    with one_torch_thread():
        check_examples(model, reference, validation)
        reference_loss, *losses = model.mean_losses([reference, *models], validation)
        distances = distances_from(reference, models, model.layout.num_trainable)
        weights = mixing_weights(first_order_weights(reference_loss, torch.tensor(losses), distances))
        mixture = mix(reference, models, weights)
        best = min(range(len(models)), key=lambda place: (losses[place], place))
        served = {"mixture": mixture, "mean": reference, "best": models[best]}
        scores = {name: model.score(theta, test) for name, theta in served.items()} if len(test) else {}
    return Served(
        model=model.network(mixture),
        weights=dict(zip(names, weights.tolist(), strict=True)),
        losses=dict(zip(names, losses, strict=True)),
        reference_loss=reference_loss,
        best=names[best],
        scores=scores,
    )


def models_of(folder: Path, model: Model, names: Sequence[str]) -> dict[str, Tensor]:
    """Read the final models of a finished run, by the names of its sites."""
    thetas = load_models(folder, model, read_record(folder))
    if thetas is None:
        raise InputError(f"{folder} lacks models of a finished run: delete its result.json, and resume it")
    return dict(zip(names, thetas, strict=True))


def _parts_of(site: Site | Data) -> tuple[Examples, Examples]:
    """Return what models are judged by, and what they are tested on, if anything."""
    given: Any = site
    is_parts = isinstance(given, tuple) and not any(isinstance(part, Tensor) for part in given)
    if is_parts:
        data = client_data(NEW, given, VALIDATION_FRACTION, seed=0)
        return data.validation, data.test
    examples = as_examples(given)
    return examples, examples.take(torch.arange(0))
