"""What cluster methods share, worked by hand."""

import pytest
import torch

from fedfomo.algorithms.clustering import (
    Clusters,
    average_by_cluster,
    cosines,
    farthest_models,
    groups_after,
    init_cluster_models,
    merge_nearest,
    redrawn,
)
from fedfomo.algorithms.fedavg import Upload
from toy_problems import ids, initialised, numbers, point, start_of, with_batch_norm


def test_each_cluster_averages_its_own_members_by_examples() -> None:
    # Cluster 0: (1·1 + 3·5)/4 = 4. Cluster 1: 7. Nobody is in cluster 2, which stays at 9.
    uploads = {0: Upload(point(1), 1), 1: Upload(point(7), 5), 2: Upload(point(5), 3)}
    models = average_by_cluster([point(0), point(0), point(9)], uploads, {0: 0, 1: 1, 2: 0})
    assert [model.item() for model in models] == [4.0, 7.0, 9.0]


def test_updates_are_what_members_changed_of_their_clusters_model() -> None:
    # Client 1 is in the cluster at (4, 4): (5, 2) − (4, 4) is (1, −2), of which one coordinate is trainable.
    clusters = Clusters((point(0, 0), point(4, 4)), ids(0, 1))
    assert clusters.updates({1: Upload(point(5, 2), 1)}, 2)[1].tolist() == [1.0, -2.0]
    assert clusters.updates({1: Upload(point(5, 2), 1)}, 1)[1].tolist() == [1.0]
    assert clusters.members(1) == [1]
    assert clusters.model_for(0).tolist() == [0.0, 0.0]


def test_cosines() -> None:
    # (3, 4) and (4, 3): 24/25. With its opposite: −1. With nothing: 0.
    found = cosines([point(3, 4), point(4, 3), point(-3, -4), point(0, 0)])
    assert found[0].tolist() == pytest.approx([1.0, 0.96, -1.0, 0.0])


def test_the_nearest_are_merged_first() -> None:
    # Points 0, 1, 3, 10: merge 0 and 1 at 1, then 3 at 2 (from 1), then 10 at 7 (from 3).
    gaps = numbers(1, 3, 10, 2, 9, 7)
    merges = merge_nearest(gaps, "single")
    assert merges == [(0, 1, 1.0), (2, 4, 2.0), (3, 5, 7.0)]
    assert [groups_after(merges, num) for num in range(4)] == [[0, 1, 2, 3], [0, 0, 1, 2], [0, 0, 0, 1], [0, 0, 0, 0]]


def test_complete_linkage_looks_at_the_farthest_members() -> None:
    # After {0, 1}: complete linkage sees 3 at distance 3 from 0, and 10 at 10 from 0.
    assert [height for _, _, height in merge_nearest(numbers(1, 3, 10, 2, 9, 7), "complete")] == [1.0, 3.0, 10.0]


def test_ties_leave_exactly_as_many_groups_as_asked_for() -> None:
    # Four corners of a regular tetrahedron: every height is the same, and still two merges make two groups.
    merges = merge_nearest(torch.ones(6, dtype=torch.float64), "single")
    assert sorted(set(groups_after(merges, 2))) == [0, 1]


def test_one_item_is_one_group() -> None:
    assert merge_nearest(numbers(), "single") == []
    assert groups_after([], 0) == [0]


def test_models_far_apart_cover_all() -> None:
    # The mean of 0, 1, 10, 11, 30 is 10.4: take 10, then 30 (20 away), then 0 (10 away); in the order of clients.
    models = [point(0), point(1), point(10), point(11), point(30)]
    assert [model.item() for model in farthest_models(models, 3, 1)] == [0.0, 10.0, 30.0]


def test_buffers_keep_no_models_apart() -> None:
    # Only the first coordinate is trainable: the mean is 1, so take 1 and then 0 before 2, the first of two at 1.
    models = [point(0, 0), point(1, 0), point(2, 9)]
    assert [model.tolist() for model in farthest_models(models, 2, 1)] == [[0.0, 0.0], [1.0, 0.0]]


def test_equal_models_are_taken_once_each() -> None:
    models = [point(1)] * 3
    assert len(farthest_models(models, 2, 1)) == 2
    assert len(farthest_models(models, 5, 1)) == 3


def test_redrawn_models_have_the_same_values_in_other_places() -> None:
    model = initialised(with_batch_norm)
    initial, layout = model.read(), model.layout
    assert torch.equal(redrawn(initial, layout, 0), initial)
    first, second = redrawn(initial, layout, 1), redrawn(initial, layout, 2)
    assert not torch.equal(first, initial)
    assert not torch.equal(first, second)
    for slot in layout.slots:
        inside = slice(slot.start, slot.stop)
        assert torch.equal(first[inside].sort().values, initial[inside].sort().values)
    assert torch.equal(first[layout.num_trainable :], initial[layout.num_trainable :])
    assert torch.equal(redrawn(initial, layout, 1), first)


def test_one_cluster_needs_no_seeding() -> None:
    start = start_of(3, 1.0, 2.0)
    assert init_cluster_models(start, 1, "clients")[1]
    models, is_seeded = init_cluster_models(start, 2, "clients")
    assert (len(models), is_seeded) == (1, False)
    models, is_seeded = init_cluster_models(start, 2, "random")
    assert (len(models), is_seeded) == (2, True)
