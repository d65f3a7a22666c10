"""Stochastic gradient descent, step by step."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedfomo.core.data import Examples
from fedfomo.core.local_training import ProximalTerm, Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from toy_problems import initialised, perceptron, point, points, scalar_model, targets, with_batch_norm, with_dropout

PLAIN = Sgd(learning_rate=0.25, weight_decay=0.0, learning_rate_decay=1.0, epochs=1, batch_size=50)


def train(sgd: Sgd, start: float, examples: Examples, round: int = 0, pull: ProximalTerm | None = None) -> float:
    return sgd.train(scalar_model(), TrainingJob(point(start), examples, round, stream(0), pull)).item()


def variant(**changes: float) -> Sgd:
    return replace(PLAIN, **changes)


def test_a_step_goes_against_the_gradient() -> None:
    assert train(PLAIN, 0, targets(8)) == 0 - 0.25 * 2 * (0 - 8)


def test_every_epoch_is_a_pass_over_all_batches() -> None:
    # Each step goes halfway to 8: two epochs of two batches of equal examples are four steps.
    sgd = variant(epochs=2, batch_size=3)
    assert train(sgd, 0, targets(8, 8, 8, 8, 8, 8)) == 8 * (1 - 0.5**4)


def test_the_short_last_batch_is_kept() -> None:
    # Five examples in batches of two: three steps.
    assert train(variant(batch_size=2), 0, targets(8, 8, 8, 8, 8)) == 8 * (1 - 0.5**3)


def test_weight_decay_pulls_towards_zero() -> None:
    # Gradient 2(4 − 8) + 0.5 · 4 = −6.
    assert train(variant(weight_decay=0.5), 4, targets(8)) == 4 + 0.25 * 6


def test_momentum_keeps_a_share_of_the_step_before() -> None:
    # x = 0: v = −16, x = 4. Then v = 0.5 · (−16) + 2(4 − 8) = −16, x = 8. Then v = −8 + 0, x = 10.
    sgd = variant(momentum=0.5)
    assert [train(variant(momentum=0.5, epochs=e), 0, targets(8)) for e in (1, 2, 3)] == [4.0, 8.0, 10.0]
    assert train(sgd, 4, targets(8)) == 4 + 0.25 * 8  # every training starts at rest


def test_a_pull_adds_its_strength_times_the_distance() -> None:
    # Gradient 2(4 − 8) + 3(4 − 10) = −26.
    assert train(PLAIN, 4, targets(8), pull=ProximalTerm(point(10), 3.0)) == 4 + 0.25 * 26


def test_a_pull_leaves_buffers_alone() -> None:
    gradient = torch.zeros(2)
    ProximalTerm(point(1, 2, 77), 2.0).add_gradient(gradient, point(3, 3))
    assert gradient.tolist() == [2.0 * (3 - 1), 2.0 * (3 - 2)]


def test_all_terms_together() -> None:
    # x = 4: 2(4 − 8) + 0.5 · 4 + 3(4 − 10) = −24, so v = −24 and x = 4 + 6 = 10.
    # x = 10: 2(10 − 8) + 0.5 · 10 + 3(10 − 10) = 9, so v = −12 + 9 = −3 and x = 10.75.
    sgd = variant(weight_decay=0.5, momentum=0.5, epochs=2)
    assert train(sgd, 4, targets(8), pull=ProximalTerm(point(10), 3.0)) == 10.75


def test_the_mean_gradient_of_a_batch_counts() -> None:
    # Targets 2 and 6 in one batch: gradient 2(0 − 4).
    assert train(PLAIN, 0, targets(2, 6)) == 0.25 * 8


@pytest.mark.parametrize(
    ("round", "step"),
    # 0.1 · 0.99^round, by round and not by epoch; 0.1 · 0.99^688 would be below the floor.
    [(0, 0.1), (1, 0.099), (19, 0.08261686238355867), (99, 0.036972963764972645), (688, 1e-4), (5000, 1e-4)],
)
def test_the_papers_step_size_decays_by_round_down_to_a_floor(round: int, step: float) -> None:
    assert Sgd().learning_rate_in(round) == pytest.approx(step, abs=1e-12)


def test_a_step_size_below_the_floor_is_meant() -> None:
    assert Sgd(learning_rate=1e-5).learning_rate_in(0) == 1e-5
    assert Sgd(learning_rate=1e-5).learning_rate_in(50) == 1e-5
    assert Sgd(learning_rate=0.0).learning_rate_in(3) == 0.0


def test_the_rounds_step_size_is_used_in_all_epochs() -> None:
    # Round 1 halves the step: x ← x − 0.125 · 2(x − 8), twice: 0 → 2 → 3.5.
    assert train(variant(learning_rate_decay=0.5, epochs=2), 0, targets(8), round=1) == 3.5


def test_the_start_is_left_as_it_was() -> None:
    model, examples = initialised(with_batch_norm), points(20, 0, stream(0))
    start = model.read()
    kept = start.clone()
    trained = Sgd(batch_size=6).train(model, TrainingJob(start, examples, 0, stream(1)))
    assert torch.equal(start, kept)
    assert not torch.equal(trained, start)
    again = trained.clone()
    model.load(start)  # what comes back does not share the network's memory
    assert torch.equal(trained, again)


def test_without_examples_the_start_comes_back() -> None:
    model = scalar_model()
    start = point(3)
    trained = PLAIN.train(model, TrainingJob(start, targets(), 0, stream(0)))
    assert trained.tolist() == [3.0]
    assert trained.data_ptr() != start.data_ptr()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("build", [perceptron, with_batch_norm])
def test_flat_descent_is_torchs(build: type[nn.Module], momentum: float) -> None:
    examples = points(23, 0, stream(0))
    sgd = Sgd(learning_rate=0.1, momentum=momentum, weight_decay=1e-2, batch_size=5, epochs=3)
    model = initialised(build)
    net = build()
    net.load_state_dict(model.state_dict(model.read()))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum, weight_decay=1e-2)
    rng = stream(4)
    torch.randint(2**62, (), generator=rng)  # the seed for layers that draw
    for _ in range(3):
        for batch in examples.shuffled_batches(5, rng):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(batch.inputs), batch.labels).backward()
            optimiser.step()
    trained = sgd.train(model, TrainingJob(model.read(), examples, 0, stream(4)))
    assert torch.allclose(trained, Model(net).read(), rtol=1e-5, atol=1e-6)


def test_the_stream_decides_the_order_of_examples() -> None:
    model, examples = initialised(perceptron), points(20, 0, stream(0))
    sgd, start = Sgd(batch_size=4, epochs=1), model.read()
    first = sgd.train(model, TrainingJob(start, examples, 0, stream(1)))
    assert torch.equal(sgd.train(model, TrainingJob(start, examples, 0, stream(1))), first)
    assert not torch.equal(sgd.train(model, TrainingJob(start, examples, 0, stream(2))), first)


@pytest.mark.parametrize("build", [perceptron, with_dropout])
def test_torchs_own_generator_is_neither_read_nor_moved(build: type[nn.Module]) -> None:
    model, examples = initialised(build), points(20, 0, stream(0))
    start = model.read()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Sgd(epochs=1).train(model, TrainingJob(start, examples, 0, stream(1)))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(Sgd(epochs=1).train(model, TrainingJob(start, examples, 0, stream(1))), first)


def test_dropout_draws_differently_in_another_stream() -> None:
    model, examples = initialised(with_dropout), points(20, 0, stream(0))
    one_batch = Sgd(epochs=1, batch_size=20)  # the order in a single batch matters to nothing but rounding
    a, b = (one_batch.train(model, TrainingJob(model.read(), examples, 0, stream(s))) for s in (1, 2))
    assert not torch.allclose(a, b, atol=1e-4)


def test_frozen_parameters_stay_where_they_are() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    model = Model(module)
    start = model.read()
    trained = Sgd(momentum=0.9).train(
        model, TrainingJob(start, points(20, 0, stream(0)), 0, stream(1), ProximalTerm(start + 1, 0.5))
    )
    trainable = model.layout.num_trainable
    assert torch.equal(trained[trainable:], start[trainable:])
    assert not torch.equal(trained[:trainable], start[:trainable])


def test_tied_weights_train_as_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(1, 1, bias=False)
            self.b = nn.Linear(1, 1, bias=False)
            self.b.weight = self.a.weight

        def forward(self, inputs: Tensor) -> Tensor:
            return self.b(self.a(inputs))[:, 0]  # x² at input 1

    # d/dx (x² − 3)² = 2(x² − 3) · 2x = −8 at 1.
    sgd = Sgd(learning_rate=0.125, weight_decay=0.0, epochs=1)
    examples = Examples(torch.ones(1, 1), torch.tensor([3.0]))
    assert sgd.train(scalar_model(Twice()), TrainingJob(point(1), examples, 0, stream(0))).tolist() == [2.0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((f, v) for f in ("learning_rate", "momentum", "weight_decay") for v in (math.nan, math.inf, -0.1)),
        *((f, v) for f in ("learning_rate_decay", "learning_rate_floor") for v in (math.nan, math.inf, -0.1)),
        *((f, v) for f in ("batch_size", "epochs") for v in (0, -3)),
    ],
)
def test_impossible_settings_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field} must be .*at least [01], not {value}"):
        Sgd(**{field: value})  # type: ignore[arg-type]
