"""DP-SGD (Abadi et al., 2016): training in which no record can leave more than a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfomo.core.data import Examples
from fedfomo.core.local_training import Sgd, TrainingJob, run_sgd
from fedfomo.core.model import Model
from fedfomo.errors import InputError
from fedfomo.privacy.clipping import clipped_sum
from fedfomo.privacy.private_data import PrivateExamples


@dataclass(frozen=True)
class DpSgd:
    """Stochastic gradient descent on clipped, noisy gradients of Poisson samples.

    The batch size becomes the expected number of examples a step; an epoch has as many steps as without privacy.
    Weight decay and penalties read no records, so they are added after the noise, for nothing.
    """

    sgd: Sgd
    noise: float  # σ, in units of the clip
    clip: float  # C

    @property
    def epochs(self) -> int:
        """Passes over the training data each round, in expectation."""
        return self.sgd.epochs

    def learning_rate_in(self, round: int) -> float:
        """Return the step size of one round."""
        return self.sgd.learning_rate_in(round)

    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[PrivateExamples]:
        """Draw every example into every batch with the same chance; a batch may be empty."""
        private = _private(examples)
        chance, steps = self.chance(len(private)), epochs * self.steps(len(private))
        private.clear(self.noise, chance, steps)
        for _ in range(steps):
            batch = private.sampled(chance, rng)
            yield batch.augmented(rng) if self.sgd.augment else batch

    def steps(self, num_examples: int) -> int:
        """Return the steps of an epoch."""
        return -(-num_examples // self.sgd.batch_size)

    def chance(self, num_examples: int) -> float:
        """Return the chance of an example to be in a batch (q)."""
        return min(1.0, self.sgd.batch_size / max(1, num_examples))

    def gradient(self, model: Model, batch: Examples) -> Tensor:
        """Return (Σ clipped gradients + N(0, σ²C²)) / expected size, plus weight decay, at the loaded parameters."""
        private = _private(batch)
        private.charge(self.noise)
        gradient = clipped_sum(model, private.opened(), self.clip)
        if self.noise:
            drawn = private.meter.noise.draw(gradient.numel())
            gradient.add_(drawn.to(gradient), alpha=self.noise * self.clip)
        gradient.div_(private.expected)
        if self.sgd.weight_decay:
            gradient.add_(model.trainable, alpha=self.sgd.weight_decay)
        return gradient

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Run the epochs from the start; without noise if nothing of the result leaves the client."""
        if task.stays:
            return self.sgd.train(model, replace(task, examples=_private(task.examples).opened()))
        return run_sgd(self.sgd, self, model, task)


def _private(examples: Examples) -> PrivateExamples:
    if not isinstance(examples, PrivateExamples):
        raise InputError("private training was given examples that belong to no client: nobody could pay for them")
    return examples
