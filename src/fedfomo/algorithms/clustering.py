"""Clusters of clients: a model for each, found by updates, by models, or by affinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import Upload, average_uploads
from fedfomo.core.client import ClientId, FederationInfo
from fedfomo.core.determinism import one_blas_thread
from fedfomo.core.messages import Ids, Parameters
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import stream


@dataclass(frozen=True)
class Clusters:
    """The model of every cluster, and the cluster of every client."""

    models: tuple[Parameters, ...]
    of_client: Ids

    @classmethod
    def start(cls, start: FederationInfo) -> Clusters:
        """Put everybody into one cluster."""
        return cls((start.initial,), torch.zeros(start.num_clients, dtype=torch.int64))

    def model_for(self, client: ClientId) -> Tensor:
        """Return the model of a client's cluster."""
        return self.models[int(self.of_client[client])]

    def members(self, cluster: int) -> list[ClientId]:
        """List a cluster's clients in the order of their ids."""
        return torch.nonzero(self.of_client == cluster).flatten().tolist()

    def updates(self, uploads: Mapping[ClientId, Upload], num_trainable: int) -> dict[ClientId, Tensor]:
        """Return Δ_i = θ_i − θ_c, over the trainable coordinates, for each upload of a model trained from θ_c."""
        return {n: (uploads[n].model - self.model_for(n))[:num_trainable] for n in sorted(uploads)}

    def averaged(self, uploads: Mapping[ClientId, Upload]) -> Clusters:
        """Average the uploads inside each cluster; a cluster without any stays as it is."""
        cluster_of = {n: int(self.of_client[n]) for n in uploads}
        return replace(self, models=average_by_cluster(self.models, uploads, cluster_of))


def average_by_cluster(
    models: Sequence[Tensor], uploads: Mapping[ClientId, Upload], cluster_of: Mapping[ClientId, int]
) -> tuple[Tensor, ...]:
    """Replace each cluster's model by the average of its members' uploads, by their numbers of examples."""
    return tuple(
        average_uploads({n: upload for n, upload in uploads.items() if cluster_of[n] == cluster}, otherwise=model)
        for cluster, model in enumerate(models)
    )


def cosines(vectors: Sequence[Tensor]) -> Tensor:
    """Return ⟨v_i, v_j⟩ / ‖v_i‖‖v_j‖ for all pairs, in float64; 0 where a vector is 0."""
    directions = torch.nn.functional.normalize(torch.stack(list(vectors)).double(), dim=1)
    # Row by row: the bits of a product of matrices would depend on the number of threads.
    return torch.stack([(directions * direction).sum(dim=1) for direction in directions])


def merge_nearest(distances: Tensor, linkage: str) -> list[tuple[int, int, float]]:
    """Merge the two nearest groups of n items until one is left; return each merge's parts and height.

    `distances` holds those of items 0–1, 0–2, …, 1–2, …; the group made by merge m bears the number n + m.
    """
    if len(distances) == 0:
        return []
    from scipy.cluster import hierarchy  # takes a while to import

    merges = hierarchy.linkage(distances.double().numpy(), linkage).tolist()
    return [(int(one), int(other), height) for one, other, height, _ in merges]


def groups_after(merges: Sequence[tuple[int, int, float]], num_merges: int) -> list[int]:
    """Return each item's group once the first merges are done; groups are numbered by their first items."""
    num_items = len(merges) + 1
    groups = {item: [item] for item in range(num_items)}
    for number, (one, other, _) in enumerate(merges[:num_merges]):
        groups[num_items + number] = groups.pop(one) + groups.pop(other)
    group_of = [0] * num_items
    for number, items in enumerate(sorted(groups.values(), key=min)):
        for item in items:
            group_of[item] = number
    return group_of


def init_cluster_models(start: FederationInfo, num_clusters: int, seeding: str) -> tuple[tuple[Tensor, ...], bool]:
    """Return the models to start with, and whether these are all: otherwise clients are to train it first."""
    if seeding == "clients" and num_clusters > 1:
        return (start.initial,), False
    return tuple(redrawn(start.initial, start.layout, number) for number in range(num_clusters)), True


def redrawn(initial: Tensor, layout: Layout, number: int) -> Tensor:
    """Return initial model `number`: the values inside each trainable tensor change places; number 0 is the given one.

    Layers draw their values independently, so other places are as good as another draw.
    """
    theta = initial.clone()
    for slot in layout.slots:
        if number and slot.start < layout.num_trainable:
            values = initial[slot.start : slot.stop]
            order = torch.randperm(len(values), generator=stream(number, "redrawn", slot.name))
            theta[slot.start : slot.stop] = values[order]
    return theta


def farthest_models(models: Sequence[Tensor], num: int, num_trainable: int) -> tuple[Tensor, ...]:
    """Choose models that cover all: the nearest to their mean, then always the farthest from those chosen."""
    points = torch.stack([model[:num_trainable] for model in models]).double()
    chosen = [int((points - points.mean(dim=0)).norm(dim=1).argmin())]
    gaps = (points - points[chosen[0]]).norm(dim=1)
    while len(chosen) < min(num, len(models)):
        gaps[chosen] = -1.0  # never twice, even among equals
        chosen.append(int(gaps.argmax()))
        gaps = torch.minimum(gaps, (points - points[chosen[-1]]).norm(dim=1))
    return tuple(models[index] for index in sorted(chosen))


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
