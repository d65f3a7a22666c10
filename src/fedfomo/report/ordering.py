"""In which order to draw clients, so that those who are alike stand together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

Matrix = npt.NDArray[np.float64]


def order_by_likeness(matrix: Sequence[Sequence[float]]) -> list[int]:
    """Order clients such that those who value the same others stand together; they value each other most of all."""
    values = _standardised(np.asarray(matrix, dtype=np.float64))
    together = values + values.T
    np.fill_diagonal(together, 0.0)
    return _leaves(together.max() - together)


def order_rows(matrix: Sequence[Sequence[float]]) -> list[int]:
    """Order rows such that similar ones stand together."""
    values = _standardised(np.asarray(matrix, dtype=np.float64))
    squares = (values**2).sum(axis=1)
    gaps = squares[:, None] + squares[None, :] - 2 * values @ values.T
    return _leaves(np.sqrt(np.maximum(gaps, 0.0)))


def _standardised(matrix: Matrix) -> Matrix:
    """Make rows comparable: loss gaps differ in size from client to client."""
    others = matrix.copy()
    np.fill_diagonal(others, 0.0)
    spread = np.sqrt((others**2).mean(axis=1, keepdims=True))
    return others / np.where(spread > 0, spread, 1.0)


def _leaves(distances: Matrix) -> list[int]:
    """Return the leaves of an average-linkage tree from left to right."""
    number = len(distances)
    if number < 3 or not np.any(distances):
        return list(range(number))
    distances = distances.copy()
    np.fill_diagonal(distances, 0.0)
    return leaves_list(linkage(squareform(distances, checks=False), method="average")).tolist()
