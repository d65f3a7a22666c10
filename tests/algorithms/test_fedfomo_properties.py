"""What holds for FedFomo whatever the numbers."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from fedfomo.algorithms.fedfomo import Download, EvaluationWeights, FedFomo, Memory, State, Upload
from fedfomo.algorithms.fedfomo.as_coded import affinity_increments
from fedfomo.algorithms.fedfomo.core import choose_downloads, first_order_weights, mixing_weights
from fedfomo.core.rng import stream
from fedfomo.core.sparse import SparseMatrix
from fedfomo.core.vectors import distances_from, mix
from toy_problems import ids, initialised, numbers, perceptron, point, points, scalar_client, scalar_model

losses = st.floats(0, 100)
distances = st.floats(0.01, 100)
candidates = st.lists(st.tuples(losses, distances), min_size=1, max_size=8)
coordinates = st.floats(-1000, 1000, width=32)
models = st.lists(st.lists(coordinates, min_size=3, max_size=3), min_size=1, max_size=6)
broken_values = st.sampled_from([math.nan, math.inf, -math.inf])


def weights_of(reference_loss: float, pairs: list[tuple[float, float]]) -> Tensor:
    return first_order_weights(reference_loss, numbers(*(p[0] for p in pairs)), numbers(*(p[1] for p in pairs)))


@given(losses, candidates, st.floats(0.01, 1000))
def test_shares_do_not_depend_on_the_scale_of_the_loss(
    reference_loss: float, pairs: list[tuple[float, float]], scale: float
) -> None:
    assume(all(abs(reference_loss - loss) > 1e-6 for loss, _ in pairs))  # rounding decides the sign of less
    scaled = weights_of(reference_loss * scale, [(loss * scale, distance) for loss, distance in pairs])
    shares = mixing_weights(weights_of(reference_loss, pairs))
    assert torch.allclose(mixing_weights(scaled), shares, rtol=1e-6, atol=1e-9)


@given(losses, candidates, st.floats(-100, 100))
def test_shares_do_not_depend_on_the_zero_of_the_loss(
    reference_loss: float, pairs: list[tuple[float, float]], shift: float
) -> None:
    assume(all(abs(reference_loss - loss) > 1e-6 for loss, _ in pairs))
    shifted = weights_of(reference_loss + shift, [(loss + shift, distance) for loss, distance in pairs])
    shares = mixing_weights(weights_of(reference_loss, pairs))
    assert torch.allclose(mixing_weights(shifted), shares, rtol=1e-6, atol=1e-7)


@given(losses, candidates)
def test_shares_sum_to_one_or_to_zero_and_follow_the_signs(
    reference_loss: float, pairs: list[tuple[float, float]]
) -> None:
    weights = weights_of(reference_loss, pairs)
    shares = mixing_weights(weights)
    assert shares.sum().item() == pytest.approx(1.0 if bool((weights > 0).any()) else 0.0)
    assert bool((shares >= 0).all())
    assert bool((shares[weights <= 0] == 0).all())


@given(losses, models, st.data())
def test_the_order_of_candidates_changes_nothing_but_rounding(
    reference_loss: float, rows: list[list[float]], data: st.DataObject
) -> None:
    reference = torch.zeros(3)
    stacked = torch.tensor(rows, dtype=torch.float32)
    some_losses = (stacked.abs().sum(dim=1) % 7).double()
    order = data.draw(st.permutations(range(len(rows))))

    def update(chosen: Tensor, of: Tensor) -> Tensor:
        weights = first_order_weights(reference_loss, of, distances_from(reference, list(chosen), 3, "l2"))
        return mix(reference, chosen, mixing_weights(weights))

    assert torch.allclose(
        update(stacked[order], some_losses[order]), update(stacked, some_losses), rtol=1e-5, atol=1e-4
    )


@given(st.lists(coordinates, min_size=3, max_size=3), models, st.data())
def test_the_new_model_lies_between_the_candidates_or_is_the_reference(
    start: list[float], rows: list[list[float]], data: st.DataObject
) -> None:
    reference, stacked = torch.tensor(start), torch.tensor(rows)
    of = numbers(*data.draw(st.lists(losses, min_size=len(rows), max_size=len(rows))))
    weights = first_order_weights(50.0, of, distances_from(reference, list(stacked), 3, "l2"))
    new = mix(reference, stacked, mixing_weights(weights))
    helpful = stacked[weights > 0]
    if len(helpful) == 0:
        assert torch.equal(new, reference)
    else:
        rounding = 1e-9 * max(1.0, stacked.abs().max().item(), reference.abs().max().item())
        assert bool((new >= helpful.amin(dim=0) - rounding).all())
        assert bool((new <= helpful.amax(dim=0) + rounding).all())


@given(st.integers(2, 8), st.data())
def test_affinity_changes_for_the_evaluated_only(num_clients: int, data: st.DataObject) -> None:
    uploads: dict[int, Upload] = {}
    everybody = st.integers(0, num_clients - 1)
    for client in data.draw(st.sets(everybody)):
        evaluated = sorted(data.draw(st.sets(everybody)))
        uploads[client] = Upload(
            point(0), EvaluationWeights(ids(*evaluated), *2 * [torch.ones(len(evaluated), dtype=torch.float64)])
        )
    before = State.start(num_clients)
    after = FedFomo().aggregate(before, uploads)
    changed = {(i, j) for i, j in (after.affinity.dense() != before.affinity.dense()).nonzero().tolist()}
    assert changed == {(i, j) for i, upload in uploads.items() for j in upload.findings.ids.tolist()}


@given(st.integers(1, 9), st.integers(1, 12), st.floats(0, 1), st.integers(0, 1000), st.data())
def test_downloads_are_available_others_without_duplicates(
    num_clients: int, num: int, epsilon: float, seed: int, data: st.DataObject
) -> None:
    uploaders = data.draw(st.sets(st.integers(0, num_clients - 1)))
    row = data.draw(st.lists(st.floats(-5, 5), min_size=num_clients, max_size=num_clients))
    algorithm = FedFomo(num_downloads=num, epsilon=epsilon, epsilon_decay=0.0)
    state = algorithm.aggregate(
        State.start(num_clients), {n: Upload(point(n), EvaluationWeights.none()) for n in uploaders}
    )
    to = data.draw(st.integers(0, num_clients - 1))
    table = SparseMatrix.zeros(num_clients).add_rows({to: (torch.arange(num_clients), numbers(*row))})
    state = replace(state, affinity=table)
    chosen = algorithm.configure_client(state, to, stream(seed)).ids.tolist()
    assert to not in chosen
    assert len(set(chosen)) == len(chosen) == min(num, len(uploaders - {to}))
    assert set(chosen) <= uploaders


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6, unique=True), st.integers(1, 6), st.integers(0, 99))
def test_without_exploration_nobody_left_out_has_a_higher_affinity(row: list[float], num: int, seed: int) -> None:
    chosen = choose_downloads(numbers(*row), torch.arange(6), num, 0.0, stream(seed))
    assert chosen == sorted(range(6), key=lambda n: -row[n])[:num]


def test_pure_exploration_differs_between_rounds_and_between_clients() -> None:
    affinity = torch.zeros(20, dtype=torch.float64)
    chosen = {
        (t, client): tuple(choose_downloads(affinity, torch.arange(20), 4, 1.0, stream(0, "dispatch", t, client)))
        for t in range(5)
        for client in range(3)
    }
    assert len(set(chosen.values())) == len(chosen)


def test_judging_the_same_model_twice_gives_the_same_bits() -> None:
    model = initialised(perceptron)
    examples = points(1200, 0, stream(0))
    theta = model.read()
    first = model.score(theta, examples)
    model.score(theta + 1, examples)
    assert model.score(theta, examples) == first


@given(st.lists(st.tuples(losses | broken_values, distances | broken_values), min_size=1, max_size=6), losses)
def test_weights_are_finite_whatever_comes_in(pairs: list[tuple[float, float]], reference_loss: float) -> None:
    weights = weights_of(reference_loss, pairs)
    assert bool(torch.isfinite(weights).all())
    for weight, (loss, distance) in zip(weights.tolist(), pairs, strict=True):
        assert weight == 0 or (math.isfinite(loss) and math.isfinite(distance))
    for update in ("raw", "normalised"):
        assert bool(torch.isfinite(affinity_increments(weights, update)).all())


@given(broken_values, st.integers(0, 2), st.booleans())
def test_a_broken_candidate_changes_nothing_for_the_others(value: float, place: int, is_own: bool) -> None:
    # Three coordinates, of which the loss sees only the first: a broken one may leave the loss finite.
    class FirstOfThree(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = torch.nn.Parameter(torch.zeros(2))
            self.register_buffer("extra", torch.zeros(1))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.x[0].expand(len(inputs))

    client = scalar_client(target=4.0)
    object.__setattr__(client, "model", scalar_model(FirstOfThree()))
    broken = point(4, 0, 0)
    broken[place] = value
    own = broken if is_own else point(2, 0, 0)
    download = Download(ids(1, 2), (broken, point(4, 0, 0)))
    personal = FedFomo().personalise(client, download, Memory(point(0, 0, 0), own, EvaluationWeights.none()))
    # Losses 16 at 0, 4 at 2, 0 at 4: weights 12/2 = 6 and 16/4 = 4.
    assert personal.memory.findings.increments.tolist() == [0.0 if is_own else 6.0, 0.0, 4.0]
    assert personal.model.tolist() == pytest.approx([4.0 if is_own else 0.6 * 2 + 0.4 * 4, 0.0, 0.0])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bias_of_minus_infinity_with_a_finite_loss_is_no_candidate(value: float) -> None:
    model = initialised(perceptron)
    examples = points(40, 0, stream(0))
    diverged = model.read()
    diverged[-1] = value  # the third class's bias: −∞ rules that class out
    keep = examples.labels != 2
    loss = model.loss(diverged, type(examples)(examples.inputs[keep], examples.labels[keep]))
    assert math.isfinite(loss) == (value == -math.inf)
    distance = distances_from(model.read(), [diverged], model.layout.num_trainable, "l2")
    assert distance.item() == math.inf
    assert first_order_weights(1e9, numbers(0.0), distance).tolist() == [0.0]
