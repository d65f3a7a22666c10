"""Reading an affinity matrix: which clients form a group."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfomo.core.determinism import one_blas_thread


def group_by_affinity(affinity: Tensor, num_groups: int) -> list[int]:
    """Cluster clients spectrally by how they value each other; return a group number for each.

    Rows are made comparable by a softmax of their standardised values over the other clients, then symmetrised.
    """
    num_clients = len(affinity)
    if num_groups >= num_clients:
        return list(range(num_clients))
    if num_groups <= 1:
        return [0] * num_clients
    from sklearn.cluster import SpectralClustering  # takes seconds to import

    others = ~torch.eye(num_clients, dtype=torch.bool)
    rows = affinity[others].view(num_clients, num_clients - 1)
    spread = rows.std(dim=1, keepdim=True).clamp(min=1e-12)
    similarity = torch.zeros_like(affinity)
    similarity[others] = torch.softmax((rows - rows.mean(dim=1, keepdim=True)) / spread, dim=1).flatten()
    similarity = (similarity + similarity.T) / 2
    clustering = SpectralClustering(num_groups, affinity="precomputed", random_state=0)
    with one_blas_thread():
        return clustering.fit_predict(similarity.numpy()).tolist()


def agreement(groups: Sequence[int], found: Sequence[int]) -> float:
    """Return the adjusted Rand index of two groupings: 1 if they are the same, about 0 if by chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(groups, found))
