"""MOCHA for neural networks: relations and pulls worked by hand, and what it turns into."""

from dataclasses import replace

import pytest
import torch

from fedfomo.algorithms.local import Local
from fedfomo.algorithms.mocha import (
    Download,
    Memory,
    Mocha,
    State,
    Upload,
    anchor_of,
    centred,
    gram_matrix,
    relations,
)
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import client_of, digest, fingerprint, point, points_problem, scalar_client, scalar_problem, start_of


def table(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_deviations_from_the_mean_are_multiplied() -> None:
    # Mean (2, 1): deviations (−2, −1) and (2, 1); the third coordinate is a buffer.
    assert gram_matrix([point(0, 0, 5), point(4, 2, 7)], 2).tolist() == [[5, -5], [-5, 5]]


def test_large_models_are_multiplied_in_blocks() -> None:
    models = [torch.randn(70_000, generator=stream(n)) for n in range(3)]
    deviations = torch.stack(models).double()
    deviations -= deviations.mean(dim=0)
    assert torch.allclose(gram_matrix(models, 70_000), deviations @ deviations.T)


def test_relations_are_the_root_of_the_gram_matrix() -> None:
    # Roots 2 and 4, with the trace 6.
    assert torch.allclose(relations(table([4, 0], [0, 16])), table([1 / 3, 0], [0, 2 / 3]))
    mixed = relations(table([5, 4], [4, 5]))  # eigenvalues 9 and 1: roots 3 and 1, so [[2, 1], [1, 2]] / 4
    assert torch.allclose(mixed, table([0.5, 0.25], [0.25, 0.5]))


def test_relations_of_models_that_are_one_are_none() -> None:
    assert torch.allclose(relations(torch.zeros(4, 4, dtype=torch.float64)), torch.eye(4, dtype=torch.float64) / 4)


def test_relations_minimise_the_objective() -> None:
    # tr(AΣ⁻¹) is least, among matrices with the trace 1, where Σ ∝ A^½.
    factor = torch.randn(4, 4, dtype=torch.float64, generator=stream(0))
    gram = factor @ factor.T
    best = (gram @ torch.linalg.inv(relations(gram))).trace()
    for seed in range(20):
        other = torch.randn(4, 6, dtype=torch.float64, generator=stream(1, seed))
        other = other @ other.T
        assert (gram @ torch.linalg.inv(other / other.trace())).trace() > best


def test_centring_leaves_a_common_shift_free() -> None:
    # I − 11ᵀ/2.
    assert centred(torch.eye(2, dtype=torch.float64)).tolist() == [[0.5, -0.5], [-0.5, 0.5]]
    skew = centred(table([3, 1, 0], [1, 2, 0], [0, 0, 1]))
    assert torch.allclose(skew.sum(dim=0), torch.zeros(3, dtype=torch.float64), atol=1e-15)


def test_unrelated_clients_are_pulled_to_the_mean_of_the_others() -> None:
    # Ω_tt = 1 − 1/3, and the others weigh the same.
    anchor, stiffness = anchor_of(0, [point(9), point(2), point(4)], centred(torch.eye(3, dtype=torch.float64)))
    assert anchor.tolist() == [3.0]
    assert stiffness == pytest.approx(2 / 3)


def test_a_pull_has_the_gradient_of_the_penalty() -> None:
    factor = torch.randn(4, 4, dtype=torch.float64, generator=stream(0))
    coupling = centred(factor @ factor.T)
    columns = torch.randn(4, 3, dtype=torch.float64, generator=stream(1)).requires_grad_()
    (columns.T @ coupling @ columns).trace().backward()
    assert columns.grad is not None
    for t in range(4):
        anchor, stiffness = anchor_of(t, [column.detach().float() for column in columns], coupling)
        pull = 2 * stiffness * (columns[t].detach() - anchor.double())
        assert torch.allclose(pull, columns.grad[t], rtol=1e-4, atol=1e-5)  # anchors are float32


def test_a_lone_client_is_not_pulled() -> None:
    anchor, stiffness = anchor_of(0, [point(7)], centred(torch.eye(1, dtype=torch.float64)))
    assert (anchor.tolist(), stiffness) == ([7.0], 0.0)


def test_alike_models_hold_each_other_more() -> None:
    # Two pairs far apart: once relations are learnt, each is pulled to its partner rather than to the mean.
    algorithm = Mocha(relate_every=1)
    uploads = {n: Upload(point(*xy)) for n, xy in enumerate([(0, 0), (0, 1), (10, 0), (10, 1)])}
    before = algorithm.start_server(start_of(4, 0, 0))
    state = algorithm.aggregate(before, uploads)
    unrelated = anchor_of(0, [upload.own for upload in uploads.values()], centred(before.precision))
    download = algorithm.configure_client(state, 0, stream(0))
    assert unrelated[0].tolist() == pytest.approx([20 / 3, 2 / 3])
    assert download.anchor is not None
    assert download.anchor[0] < 1.0
    assert download.stiffness > unrelated[1]


def test_relations_are_learnt_every_few_rounds() -> None:
    algorithm = Mocha(relate_every=2)
    state = algorithm.start_server(start_of(2, 0.0))
    first = algorithm.aggregate(state, {0: Upload(point(1)), 1: Upload(point(5))})
    assert torch.equal(first.precision, state.precision)
    second = algorithm.aggregate(first, {})
    assert not torch.equal(second.precision, state.precision)
    assert second.models == first.models


def test_who_has_not_uploaded_is_related_to_nobody() -> None:
    algorithm = Mocha(relate_every=1)
    state = algorithm.aggregate(algorithm.start_server(start_of(4, 0.0)), {1: Upload(point(1)), 3: Upload(point(5))})
    assert state.precision[0].tolist() == [1, 0, 0, 0]
    assert state.precision[2].tolist() == [0, 0, 1, 0]
    assert algorithm.configure_client(state, 0, stream(0)).anchor == point(3)  # the mean of those who have


def test_who_joins_between_two_learnings_is_pulled_as_gently_as_anybody() -> None:
    # Models 1 and −1 deviate by (1, −1): the gram matrix has the eigenvalues 2 and 0, so Ω = Σ⁻¹/2 is 1/2 along
    # (1, −1)/√2. Centred, it is [[¼, −¼], [−¼, ¼]], and stays so beside the newcomer's I, whose centred part is
    # ccᵀ with c = (−⅓, −⅓, ⅔). The newcomer's row is (−2/9, −2/9, 4/9), the first client's (13/36, −5/36, −2/9).
    algorithm = Mocha(relate_every=2)
    state = replace(algorithm.start_server(start_of(3, 0.0)), rounds=1)
    learnt = algorithm.aggregate(state, {0: Upload(point(1)), 1: Upload(point(-1))})
    assert learnt.precision[:2, :2].flatten().tolist() == pytest.approx([0.25, -0.25, -0.25, 0.25], abs=1e-3)
    joined = algorithm.aggregate(learnt, {2: Upload(point(8))})
    newcomer, first = (algorithm.configure_client(joined, n, stream(0)) for n in (2, 0))
    assert newcomer.anchor is not None
    assert first.anchor is not None
    assert newcomer.stiffness == pytest.approx(4 / 9, abs=1e-3)
    assert newcomer.anchor.item() == pytest.approx(0.0, abs=1e-3)
    assert first.stiffness == pytest.approx(13 / 36, abs=1e-3)
    assert first.anchor.item() == pytest.approx((5 / 36 * -1 + 2 / 9 * 8) / (13 / 36), abs=1e-2)


def test_before_anybody_has_uploaded_nobody_is_pulled() -> None:
    state = Mocha().start_server(start_of(3, 0.0))
    assert Mocha().configure_client(state, 0, stream(0)).anchor is None
    assert fingerprint(Mocha().aggregate(state, {})) == fingerprint(State(1, {}, state.precision, 1))


def test_a_round_under_a_pull() -> None:
    # Gradient 2(0 − 8) + 2 · 0.5 · 2(0 − 4) = −24: 0 + 0.25 · 24 = 6.
    client = scalar_client(target=None, train_target=8.0)
    trained = Mocha(lambda_=0.5).train(client, Download(point(4), 2.0), Memory(point(0)))
    assert trained.upload.own.tolist() == [6.0]


def test_no_pull_goes_beyond_the_anchor() -> None:
    # However stiff: 0.25 · 4(0 − 4) is all of the way, beside the loss's half of the way to 8.
    client = scalar_client(target=None, train_target=8.0)
    trained = Mocha(lambda_=0.5).train(client, Download(point(4), 1e9), Memory(point(0)))
    assert trained.upload.own.tolist() == [8.0]


def test_who_cannot_train_uses_the_anchor() -> None:
    client = scalar_client(target=None, train_target=None)
    assert Mocha().personalise(client, Download(point(4), 1.0), Memory(point(0))).model.tolist() == [4.0]
    assert Mocha().personalise(client, Download(None, 1.0), Memory(point(0))).model.tolist() == [0.0]


def test_without_strength_it_is_local_training() -> None:
    problem = points_problem()
    alone = simulate(problem, Local(), SimulationConfig(rounds=4))
    related = simulate(problem, Mocha(lambda_=0.0, relate_every=2), SimulationConfig(rounds=4))
    assert digest(related.models, related.after_training) == digest(alone.models, alone.after_training)


def test_a_strong_penalty_brings_clients_together() -> None:
    problem = scalar_problem([(8.0, 0.0), (-8.0, 0.0)])
    gaps: list[float] = []
    for strength in (0.0, 0.1, 1.0):
        models = simulate(problem, Mocha(lambda_=strength), SimulationConfig(rounds=6)).models
        gaps.append(abs(models[0].item() - models[1].item()))
    assert gaps[0] > gaps[1] > gaps[2]


def test_stale_models_count_for_absent_clients() -> None:
    state = State(0, {0: point(0), 1: point(6), 2: point(0)}, torch.eye(3, dtype=torch.float64), 1)
    later = Mocha().aggregate(state, {2: Upload(point(2))})
    assert Mocha().configure_client(later, 0, stream(0)).anchor == point(4)


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="lambda"):
        Mocha(lambda_=-1.0)
    with pytest.raises(InputError, match="relate_every"):
        Mocha(relate_every=0)


def test_points_train_under_relations() -> None:
    client = client_of(points_problem(), 0)
    start = client.start.initial
    near, far = (Mocha(lambda_=s).train(client, Download(start, 1.0), Memory(start)).model for s in (1.0, 0.01))
    assert (near - start).norm() < (far - start).norm()
