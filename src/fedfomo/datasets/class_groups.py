"""Groups made of labels alone, which need no representation of images: groups of a few classes, and concept shift."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedfomo.core.rng import numpy_stream
from fedfomo.datasets.partitions import NOBODY, Indices, Partition, group_of_each_client, iid
from fedfomo.errors import require

SHARE_OF_OTHERS = 0.1
"""Share of a group's examples that are of other classes than its own."""


def groups_of_classes(
    train_labels: Indices, test_labels: Indices, num_groups: int, per_group: int, seed: int
) -> tuple[Indices, Indices]:
    """Return the group of every training and test example: each group has its own classes and a tenth of all others.

    The classes of a group are drawn by the seed; a class has two groups only after every class has one. Classes that
    no group draws are left to nobody, but for the part of them that is among the others.
    """
    classes = np.unique(train_labels)
    is_possible = 1 <= per_group <= len(classes)
    require(is_possible, f"classes_per_client is {per_group}, of {len(classes)}: give 1 to {len(classes)}")
    is_own = _draw_own_classes(num_groups, per_group, len(classes), numpy_stream(seed, "classes of groups"))
    share = share_sent_away(num_groups, per_group, len(classes))
    parts: list[Indices] = []
    for labels, part in ((train_labels, "train"), (test_labels, "test")):
        groups = np.full(len(labels), NOBODY)
        for number, label in enumerate(classes.tolist()):
            members = numpy_stream(seed, "classes of groups", part, label).permutation(np.flatnonzero(labels == label))
            own, others = np.flatnonzero(is_own[:, number]), np.flatnonzero(~is_own[:, number])
            cuts = np.rint(np.arange(len(others) + 1) * share * len(members)).astype(np.int64)
            groups[members[: cuts[-1]]] = others.repeat(np.diff(cuts))
            if len(own):
                groups[members[cuts[-1] :]] = np.resize(own, len(members) - cuts[-1])
        parts.append(groups)
    return parts[0], parts[1]


def share_sent_away(num_groups: int, per_group: int, num_classes: int) -> float:
    """Return the share q of a class that goes to each group whose own it is not, if all classes have one size.

    A group has per_group classes of its own, shared among h groups each, and q of each of the others:
    others / all = (C − k) q / ((C − k) q + k (1 − (D − h) q) / h) = a tenth.
    """
    foreign, sharing = num_classes - per_group, max(1.0, num_groups * per_group / num_classes)
    ratio = (1 - SHARE_OF_OTHERS) / SHARE_OF_OTHERS
    return per_group / (ratio * sharing * foreign + per_group * (num_groups - sharing)) if foreign else 0.0


def concept_shift(
    train_labels: Indices,
    test_labels: Indices,
    num_groups: int,
    num_clients: int,
    seed: int,
    validation_fraction: float = 0.2,
) -> Partition:
    """Deal all examples at random; the clients of each group but the first call the classes by permuted labels.

    No two groups have the same labels.
    """
    dealt = iid(train_labels, test_labels, num_clients, seed, validation_fraction)
    num_classes = int(max(train_labels.max(initial=0), test_labels.max(initial=0))) + 1
    is_possible = num_classes >= num_groups or num_groups <= math.factorial(num_classes)  # a factorial may be huge
    require(
        is_possible,
        f"distributions is {num_groups}, but {num_classes} labels have only {math.factorial(min(num_classes, 20))}"
        " orders: give no more groups than that",
    )
    groups = group_of_each_client(num_clients, num_groups)
    return replace(dealt, groups=groups, label_maps=_draw_label_maps(num_classes, num_groups, seed))


def _draw_label_maps(num_classes: int, num_groups: int, seed: int) -> tuple[Indices, ...]:
    """Draw an order of the labels for every group but the first, again and again until no other group has it."""
    usual = np.arange(num_classes)
    drawn = {tuple(usual.tolist()): usual}
    for group in range(1, num_groups):
        rng = numpy_stream(seed, "permuted labels", group)
        permuted = rng.permutation(usual)
        while tuple(permuted.tolist()) in drawn:
            permuted = rng.permutation(usual)
        drawn[tuple(permuted.tolist())] = permuted
    return tuple(drawn.values())


def _draw_own_classes(
    num_groups: int, per_group: int, num_classes: int, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    is_own = np.zeros((num_groups, num_classes), dtype=np.bool_)
    waiting: list[int] = []
    for own in is_own:
        while own.sum() < per_group:
            waiting = waiting or rng.permutation(num_classes).tolist()
            fitting = next((number for number in waiting if not own[number]), None)
            if fitting is None:
                waiting = []
            else:
                waiting.remove(fitting)
                own[fitting] = True
    return is_own
