"""Means and deviations of all sites' training data, from sums that sites share in place of records.

Each site computes its `Moments`; they are joined, and every site scales its own inputs by the result. With noise, a
site's sums are those of one Gaussian query on its training records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedfomo.core.data import ClientData, Examples
from fedfomo.core.lazy_data import LazyExamples
from fedfomo.core.trees import Tree, leaves, tree_map
from fedfomo.errors import InputError, require
from fedfomo.privacy.accountant import Query, epsilon_of
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.private_data import Noise, SystemNoise
from fedfomo.runs.provenance import read_environment

Numbers = npt.NDArray[np.float64]

READ_AT_ONCE = 200  # examples
LEAST_DEVIATION = 1e-6  # what is the same everywhere is left at 0


@dataclass(frozen=True)
class Standardise:
    """How inputs are brought to mean 0 and deviation 1 over the training data of all sites.

    With noise, inputs are first clipped to `bounds`, and what each site shares is differentially private.
    """

    noise: float = 0.0
    """Standard deviation of the noise on a site's sums, in units of what one record can change; 0: none."""
    bounds: tuple[float, float] | None = None
    """Least and greatest value of any input, known without looking at the data; noise needs them."""

    def __post_init__(self) -> None:
        known = math.isfinite(self.noise) and self.noise >= 0
        require(known, f"the noise of statistics must be a number of at least 0, not {self.noise}")
        require(not self.noise or self.bounds is not None, "noisy statistics need bounds=(least, greatest) of inputs")
        if self.bounds is not None:
            low, high = self.bounds
            require(math.isfinite(high - low) and low < high, f"bounds must be (least, greatest), not {self.bounds}")

    def epsilon(self, delta: float = 1e-5) -> float:
        """Return ε of a site's training records for sharing their sums; infinite without noise."""
        return epsilon_of({Query("training", self.noise, 1.0): 1}, "training", delta)


@dataclass(frozen=True)
class Moments:
    """Numbers of values, their means, and sums of squared deviations from these: one of each for every column."""

    counts: Numbers
    means: Numbers
    squares: Numbers

    @staticmethod
    def of(values: Numbers) -> Moments:
        """Measure rows of values; what is not a finite number is missing."""
        values = np.where(np.isfinite(values), values, np.nan)
        counts = (~np.isnan(values)).sum(0).astype(np.float64)
        means = np.nansum(values, axis=0) / np.maximum(counts, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            return Moments(counts, means, np.nansum((values - means) ** 2, axis=0))

    def joined(self, other: Moments) -> Moments:
        """Return the moments of both sets of values (Chan et al., 1983)."""
        counts = self.counts + other.counts
        share = other.counts / np.maximum(counts, 1)
        gap = other.means - self.means
        with np.errstate(over="ignore", invalid="ignore"):
            squares = self.squares + other.squares + gap**2 * self.counts * share
        return Moments(counts, self.means + share * gap, squares)

    @property
    def deviations(self) -> Numbers:
        """The standard deviations, of the population."""
        return np.sqrt(self.squares / np.maximum(self.counts, 1))

    @staticmethod
    def noisy(sums: Numbers, bounds: tuple[float, float], noise: float, source: Noise) -> Moments:
        """Return moments from the sums of `bounded_sums` with Gaussian noise.

        A record changes each of them by at most 1, and all of them by at most √(their number) in length: the noise is
        that times `noise`.
        """
        low, high = bounds
        drawn = source.draw(sums.size).numpy().reshape(sums.shape)
        counts, firsts, seconds = sums + noise * math.sqrt(sums.size) * drawn
        counts = np.maximum(counts, 1)
        means = np.clip(firsts / counts, -1, 1)
        squares = np.maximum(seconds / counts - means**2, 0) * counts
        half = (high - low) / 2
        return Moments(counts, (low + high) / 2 + half * means, half**2 * squares)


def bounded_sums(values: Numbers, bounds: tuple[float, float]) -> Numbers:
    """Return the number, sum and sum of squares of every column, its values clipped and scaled to [−1, 1].

    Values are records × columns; of an image, each channel's mean and mean square count.
    """
    low, high = bounds
    unit = ((np.clip(values, low, high) - (low + high) / 2) / ((high - low) / 2)).reshape(*values.shape[:2], -1)
    present = ~np.isnan(unit)
    pixels = np.maximum(present.sum(-1), 1)
    firsts, seconds = (np.nansum(unit**power, axis=-1) / pixels for power in (1, 2))
    return np.stack([present.any(-1).sum(0).astype(np.float64), firsts.sum(0), seconds.sum(0)])


@dataclass(frozen=True)
class Scaling:
    """Means and deviations by which inputs were scaled, a tensor of each for every tensor of an input."""

    means: list[list[float]]
    deviations: list[list[float]]

    def __call__(self, inputs: Tree) -> Tree:
        """Scale a batch of inputs."""
        return self._scaled(inputs, is_batch=True)

    def one(self, inputs: Tree) -> Tree:
        """Scale the inputs of a single example."""
        return self._scaled(inputs, is_batch=False)

    def examples(self, part: Examples) -> Examples:
        """Scale the inputs of examples; those that are read lazily, when they are read."""
        if isinstance(part, LazyExamples):
            # What a collate function takes is known to itself alone: what it gives was measured, and is scaled.
            return part.transformed(self.one) if part.collate is None else part.transformed_as_batches(self)
        return replace(part, inputs=self(part.inputs)) if len(part) else part

    def clients(self, clients: Sequence[ClientData]) -> list[ClientData]:
        """Scale the inputs of all clients."""
        return [ClientData(*map(self.examples, (own.train, own.validation, own.test))) for own in clients]

    def _scaled(self, inputs: Tree, is_batch: bool) -> Tree:
        pairs = iter(zip(self.means, self.deviations, strict=True))

        def change(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            rank = max(0, tensor.dim() - (2 if is_batch else 1))
            mean, deviation = (torch.tensor(part, dtype=tensor.dtype).view(-1, *[1] * rank) for part in next(pairs))
            return ((tensor - mean) / deviation).view_as(tensor)

        return tree_map(change, inputs)


def scaled_alike(
    clients: Sequence[ClientData], how: Standardise, source: Noise | None = None
) -> tuple[list[ClientData], Scaling]:
    """Scale the inputs of all clients by the means and deviations of all training data."""
    moments = [site_moments(own.train, how, source or SystemNoise()) for own in clients if len(own.train)]
    require(bool(moments), "no site has training data to take means and deviations of")
    if len({tuple(len(part.means) for part in parts) for parts in moments}) > 1:
        raise InputError("sites have inputs of different kinds, which cannot be scaled alike: leave out standardise")
    together = [reduce(Moments.joined, parts) for parts in zip(*moments, strict=True)]
    scaling = Scaling(
        [part.means.tolist() for part in together],
        [np.where(part.deviations < LEAST_DEVIATION, 1.0, part.deviations).tolist() for part in together],
    )
    return scaling.clients(clients), scaling


def site_moments(examples: Examples, how: Standardise, source: Noise) -> list[Moments]:
    """Measure a site's training inputs batch by batch: columns of tables, channels of whatever has more dimensions."""
    exact: list[Moments] = []
    sums: list[Numbers] = []
    for batch in examples.batches(READ_AT_ONCE):
        rows = [_rows(tensor) for tensor in leaves(batch.inputs) if tensor.is_floating_point()]
        require(bool(rows), "the inputs are whole numbers, which have no scale: leave out standardise")
        if how.noise and how.bounds is not None:
            new = [bounded_sums(row, how.bounds) for row in rows]
            sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
        else:
            own = [Moments.of(np.moveaxis(row, 1, -1).reshape(-1, row.shape[1])) for row in rows]
            exact = [a.joined(b) for a, b in zip(exact, own, strict=True)] if exact else own
    if how.noise and how.bounds is not None:
        share = how.noise * math.sqrt(len(sums))  # several tensors of one record are one query
        return [Moments.noisy(part, how.bounds, share, source) for part in sums]
    return exact


def _rows(tensor: Tensor) -> Numbers:
    values = tensor.double().numpy()
    return values[:, None] if values.ndim == 1 else values


def as_standardise(value: Any, privacy: Privacy) -> Standardise | None:
    """Read what was asked for: yes, no, or how; with privacy, only with noise."""
    require(isinstance(value, bool | Standardise), f"standardise is True, False or a Standardise, not {value!r}")
    if not value:
        return None
    how = value if isinstance(value, Standardise) else Standardise()
    way_out = "give standardise=Standardise(noise=..., bounds=(least, greatest))"
    require(bool(how.noise) or not privacy.is_on, f"means of private records would leave without noise: {way_out}")
    return how


def read_scaling(folder: Path) -> Scaling | None:
    """Read how the inputs of a run were scaled, if they were."""
    found = read_environment(folder).get("scaling")
    return None if found is None else Scaling(**found)


def begun_scaling(folders: Sequence[Path]) -> Scaling | None:
    """Read how the inputs of runs were scaled that were begun together, if any of them has begun."""
    return next((read_scaling(folder) for folder in folders if (folder / "environment.json").exists()), None)
