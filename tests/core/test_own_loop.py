"""Training loops of the user's own: what they are given, what is taken of them, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from fedfomo import OwnLoop, Privacy, Sgd, TrainContext, federate
from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.local_training import ProximalTerm, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.runs.config import CompareConfig
from fedfomo.runs.run import with_methods_named
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from fedfomo.testing.toy_federation import digest_of
from toy_problems import point, points, points_problem, scalar_model, targets, with_batch_norm

TWO = SimulationConfig(rounds=2)


def loop(model: nn.Module, data: Any, context: TrainContext) -> None:
    """Plain SGD, as anybody writes it."""
    optimizer = SGD(model.parameters(), 0.05)
    for _ in range(context.epochs):
        for inputs, labels in context.batches():
            optimizer.zero_grad()
            (context.loss(model(inputs), labels).mean() + context.penalty()).backward()
            optimizer.step()


def loader_loop(model: nn.Module, data: Any, context: TrainContext) -> None:
    """The same with a loader of torch's, and nothing of the context's but its numbers."""
    optimizer = SGD(model.parameters(), 0.05)
    for inputs, labels in DataLoader(data, context.batch_size, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def test_a_loop_trains_as_sgd_does() -> None:
    sgd = Sgd(0.05, weight_decay=0.0, learning_rate_decay=1.0, batch_size=5, epochs=2)
    problem = points_problem(build=with_batch_norm)
    own = OwnLoop(loop, epochs=2, batch_size=5)
    for name in ("fedavg", "fedprox", "fedfomo", "ditto"):
        one, other = (simulate(replace(problem, trainer=each), make_algorithm(name), TWO).models for each in (sgd, own))
        assert all(torch.allclose(one[client], other[client], atol=1e-5) for client in one), name


def test_the_penalty_has_the_gradient_and_the_value_of_the_proximal_term() -> None:
    seen: list[float] = []

    def step(model: nn.Module, data: Any, context: TrainContext) -> None:
        term = context.penalty()
        seen.append(term.item())
        [slope] = torch.autograd.grad(term, list(model.parameters()))
        with torch.no_grad():
            next(iter(model.parameters())).sub_(slope)

    job = TrainingJob(point(4), targets(8), 0, stream(0), ProximalTerm(point(10), 3.0))
    # 3/2 · (4 − 10)² = 54 with the gradient 3(4 − 10) = −18.
    assert OwnLoop(step).train(scalar_model(), job).tolist() == [4 + 18]
    assert seen == [54.0]


def test_what_a_loop_is_told() -> None:
    told: list[TrainContext] = []

    def listen(model: nn.Module, data: Any, context: TrainContext) -> None:
        told.append(context)
        assert model.training
        assert len(data) == 12
        assert data[0][0].shape == (2,)

    simulate(replace(points_problem(), trainer=OwnLoop(listen, epochs=3, batch_size=5)), make_algorithm("fedavg"), TWO)
    assert [(c.round, c.client) for c in told] == [(r, n) for r in range(2) for n in range(6)]
    assert {(c.rounds, c.epochs, c.steps, str(c.device)) for c in told} == {(2, 3, 9, "cpu")}
    assert [c.remaining_steps for c in told[::6]] == [18, 9]
    assert len({c.seed for c in told}) == 12


def test_loops_draw_by_the_seed_whatever_they_draw_with() -> None:
    problem = replace(points_problem(), trainer=OwnLoop(loader_loop, batch_size=5))
    torch.manual_seed(1)
    result = digest_of(simulate(problem, make_algorithm("fedfomo"), TWO))
    torch.manual_seed(2)
    assert digest_of(simulate(problem, make_algorithm("fedfomo"), replace(TWO, workers=2))) == result


def test_what_a_method_holds_still_stays_and_what_is_kept_trains() -> None:
    problem = replace(points_problem(), trainer=OwnLoop(loop, epochs=2, batch_size=5))
    assert digest_of(simulate(problem, make_algorithm("fedrep"), TWO))
    kept = replace(problem, keep=("2.*",))
    split = kept.split(make_algorithm("fedavg")).model
    before = split.kept_values
    kept.trainer.train(split, TrainingJob(split.read(), points(12, 0, stream(0)), 0, stream(1)))
    assert not torch.equal(before, split.kept_values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, method in ALGORITHMS.items() if method.steps == "gradients"])
def test_methods_that_need_gradients_name_those_that_do_not(name: str) -> None:
    words = f"{name} takes single gradient steps, which a training loop of your own does not give: .*fedavg.*fedfomo"
    with pytest.raises(InputError, match=words):
        simulate(replace(points_problem(), trainer=OwnLoop(loop)), make_algorithm(name), TWO)


def test_all_methods_with_a_loop_are_those_whose_options_ask_for_whole_trainings() -> None:
    config = CompareConfig(methods=("all",))
    named, _ = with_methods_named(config, OwnLoop(loop))
    assert "mapper" in named.methods
    assert not {"apfl", "apfl-logits", "per-fedavg"}.intersection(named.methods)
    mixed = replace(config, options={"mapper": {"mix": "parameters"}})
    assert "mapper" not in with_methods_named(mixed, OwnLoop(loop))[0].methods
    problem = replace(points_problem(), trainer=OwnLoop(loop))
    by_parameters = make_algorithm("mapper", {"mix": "parameters"})
    with pytest.raises(InputError, match=r"mapper takes single gradient steps.*: .*mapper"):
        simulate(problem, by_parameters, TWO)


def returns_a_model(model: nn.Module, data: Any, context: TrainContext) -> Any:
    return model


@pytest.mark.parametrize(
    ("trainer", "method", "words"),
    [
        (lambda model, data: None, "fedavg", "a training loop is a function train"),
        (returns_a_model, "fedavg", "returned a .*: it must train the network in place"),
        (loader_loop, "fedprox", "add context.penalty"),
        (Sgd, "fedavg", "or a function train"),
    ],
)
def test_what_cannot_be_a_loop_is_refused(trainer: Any, method: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        federate(with_batch_norm, SITES, method=method, rounds=1, trainer=trainer, baselines=(), workers=0)


SITES = {name: tuple(points(12, place, stream(3, name, part)) for part in range(3)) for place, name in enumerate("ab")}


def test_privacy_refuses_a_loop_and_says_why() -> None:
    with pytest.raises(InputError, match="cannot reach in a training loop of your own"):
        federate(with_batch_norm, SITES, rounds=1, trainer=loop, privacy=Privacy(noise=1.0), baselines=(), workers=0)


class Lightning(nn.Module):
    """A network in Lightning's style: nothing but forward() would be used of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs)

    def training_step(self, batch: Any) -> Tensor:
        raise AssertionError

    def configure_optimizers(self) -> Any:
        raise AssertionError


def test_a_training_step_is_not_ignored_without_a_word() -> None:
    with pytest.raises(InputError, match="Lightning has a training_step, which would be ignored"):
        federate(Lightning, SITES, rounds=1, baselines=(), workers=0)
    federate(Lightning, SITES, rounds=1, baselines=(), workers=0, trainer=Sgd())


def test_a_loop_may_move_the_network_elsewhere() -> None:
    def replaces(model: nn.Module, data: Any, context: TrainContext) -> None:
        for parameter in model.parameters():
            parameter.data = torch.full_like(parameter, 7.0)

    model = Model(with_batch_norm())
    trained = OwnLoop(replaces).train(model, TrainingJob(model.read(), points(6, 0, stream(0)), 0, stream(1)))
    assert bool((trained[: model.layout.num_trainable] == 7.0).all())
