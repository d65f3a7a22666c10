"""Clients run one by one and together."""

import pytest
import torch

from fedfomo.algorithms import ALGORITHMS
from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.data import Examples
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.vectorised import Stack
from fedfomo.simulation.client_batching import BatchedCompute
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.scheduling import BatchPolicy
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, initialised, perceptron, points, points_problem, with_dropout

TOGETHER = SimulationConfig(rounds=3, vectorise=True)


def batched() -> BatchedCompute:
    model = initialised(perceptron)
    stack = Stack.of(model, points(6, 0, torch.Generator()))
    assert stack is not None
    return BatchedCompute(model, Sgd(batch_size=5, epochs=1), stack)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_reaches_the_same_models_together_as_alone(name: str) -> None:
    problem, algorithm = points_problem(), ALGORITHMS[name]()
    alone = simulate(problem, algorithm, SimulationConfig(rounds=2))
    together = simulate(problem, algorithm, SimulationConfig(rounds=2, vectorise=True))
    for client, model in alone.models.items():
        torch.testing.assert_close(together.models[client], model, rtol=1e-3, atol=1e-4)
    assert together.gradients == alone.gradients


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_together_the_number_of_workers_is_irrelevant_too(participation: float) -> None:
    def run(workers: int, algorithm: AnyAlgorithm = FedFomo()) -> str:  # noqa: B008
        problem = points_problem(num_clients=20, sizes={3: (2, 1), 4: (0, 3), 5: (9, 0)})
        plan = SimulationConfig(rounds=3, participation=participation, workers=workers, vectorise=True)
        result = simulate(problem, algorithm, plan)
        return digest(result.models, result.after_update, result.after_training)

    assert run(0) == run(1) == run(3)


def test_what_cannot_be_stacked_runs_alone_to_the_bit() -> None:
    problem = points_problem(build=with_dropout)
    assert digest(simulate(problem, FedFomo(), TOGETHER).models) == digest(
        simulate(problem, FedFomo(), SimulationConfig(rounds=3)).models
    )


def test_clients_may_ask_differently_often_and_for_different_things() -> None:
    together = batched()
    start, examples = together._model.read(), points(6, 0, torch.Generator())

    def quiet() -> str:
        return "nothing"

    def curious() -> int:
        return sum(len(together.scores([(start, examples)] * n)) for n in (1, 2, 3))

    def busy() -> torch.Tensor:
        theta = together.train(together._model, TrainingJob(start, examples, 0, torch.Generator()))
        return together.losses(together._model, [theta], examples)

    nothing, count, losses = together.run([quiet, curious, busy])
    assert (nothing, count, losses.shape) == ("nothing", 6, (1,))


def test_an_error_of_one_client_ends_the_others_and_is_raised() -> None:
    together = batched()
    examples = points(6, 0, torch.Generator())
    ended: list[str] = []

    def waits() -> None:
        try:
            together.scores([(together._model.read(), examples)])
        finally:
            ended.append("waits")

    def fails() -> None:
        raise ArithmeticError("of its own making")

    with pytest.raises(ArithmeticError, match="of its own making"):
        together.run([waits, fails, waits])
    assert ended == ["waits"]


def test_groups_do_not_depend_on_workers_where_that_could_be_seen() -> None:
    sizes = {BatchPolicy(True, workers, 20_000).size(100) for workers in range(9)}
    assert sizes == {16}
    assert BatchPolicy(True, 2, 20_000).size(10_000) == 64
    assert BatchPolicy(False, 2, 20_000).size(15) == 1
    assert BatchPolicy(False, 2, 20_000).size(10_000) == 32
    assert BatchPolicy(False, 2, 40_000_000).size(10_000) == 1


def test_an_empty_batch_of_clients_is_played() -> None:
    assert batched().run([]) == []


def test_examples_of_one_class_and_one_example_can_be_stacked() -> None:
    together = batched()
    one = Examples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    [theta] = together.run(
        [lambda: together.train(together._model, TrainingJob(together._model.read(), one, 0, torch.Generator()))]
    )
    assert bool(torch.isfinite(theta).all())


def test_one_clients_gradient_mode_is_not_anothers() -> None:
    together = batched()
    start, examples = together._model.read(), points(6, 0, torch.Generator())
    modes: list[bool] = []

    def without_gradients() -> None:
        with torch.no_grad():
            together.train(together._model, TrainingJob(start, examples, 0, torch.Generator()))
            modes.append(torch.is_grad_enabled())

    def with_gradients() -> None:
        modes.append(torch.is_grad_enabled())
        together.scores([(start, examples)])
        modes.append(torch.is_grad_enabled())

    together.run([without_gradients, with_gradients])
    assert modes == [True, False, True]
