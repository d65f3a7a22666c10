"""Evaluating models on private records: the one place where validation records are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfomo.core.data import Examples
from fedfomo.core.model import Model
from fedfomo.errors import InputError
from fedfomo.privacy.private_data import PrivateExamples


@dataclass(frozen=True)
class PrivateEvaluator:
    """Returns losses that are clipped and noisy; or, without noise, exact ones, for which no guarantee is given."""

    noise: float | None  # in units of what one record can change
    clip: float  # largest loss of one record

    def losses(self, model: Model, thetas: Sequence[Tensor], examples: Examples) -> Tensor:
        """Return each θ's mean loss; NaN for each if there are no examples."""
        if not isinstance(examples, PrivateExamples):
            raise InputError(
                "a private evaluator was given examples of no client, for which there is no budget to charge"
            )
        examples.refuse_sample()  # its losses would be charged as if they were of all records, or not at all
        records = examples.opened()
        if len(records) == 0 or not thetas:
            return torch.full((len(thetas),), torch.nan, dtype=torch.float64)
        if self.noise is None:
            if "training" in examples.records:
                raise InputError(
                    "this method evaluates models on training records, whose guarantee would be gone:"
                    " give --privacy.validation-noise, or choose another method"
                )
            examples.charge(0.0, len(thetas))
            return torch.tensor([model.loss(theta, records) for theta in thetas], dtype=torch.float64)
        examples.charge(self.noise, len(thetas))
        means = torch.stack([mean_clipped_loss(model.losses_at(theta, records), self.clip) for theta in thetas])
        deviation = self.noise * self.clip / len(records)
        return means + deviation * examples.tracker.noise.draw(len(thetas))


def mean_clipped_loss(losses: Tensor, clip: float) -> Tensor:
    """Return the mean of losses held between 0 and C, so that one record moves it by at most C / n."""
    return torch.nan_to_num(losses.double(), nan=clip).clamp(0.0, clip).mean()
