"""Many small clients as one computation."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedfomo.algorithms import make_algorithm
from fedfomo.core import vectorised
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import ProximalTerm, Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.networks import NETWORKS
from fedfomo.core.rng import stream
from fedfomo.core.vectorised import Stack, per_example
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from toy_problems import initialised, perceptron, points, with_batch_norm, with_dropout

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def stacked(model: Model) -> Stack:
    stack = Stack.of(model, points(6, 0, stream(0)))
    assert stack is not None
    return stack


def tasks_of(model: Model, sizes: list[int], **options: object) -> list[TrainingJob]:
    return [
        TrainingJob(model.read() + 0.01 * n, points(size, n, stream(n)), 3, stream(7, n), **options)  # type: ignore[arg-type]
        for n, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("sizes", [[12], [12, 12, 12], [3, 20, 1, 11], [0, 5, 10]])
def test_training_together_is_training_alone(sizes: list[int], momentum: float) -> None:
    model, sgd = initialised(perceptron), Sgd(batch_size=5, epochs=3, momentum=momentum)
    together = stacked(model).train(sgd, tasks_of(model, sizes))
    alone = [sgd.train(model, task) for task in tasks_of(model, sizes)]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_pulls_masks_and_epochs_are_each_clients_own() -> None:
    model, sgd = initialised(perceptron), Sgd(batch_size=5, epochs=2)
    start, examples = model.read(), points(12, 0, stream(0))
    half = torch.arange(len(start)) < len(start) // 2

    def tasks() -> list[TrainingJob]:
        return [
            TrainingJob(start, examples, 0, stream(1)),
            TrainingJob(start, examples, 0, stream(1), penalty=ProximalTerm(start + 1, 0.5)),
            TrainingJob(start, examples, 0, stream(1), trainable_mask=half),
            TrainingJob(start, examples, 0, stream(1), epochs=5),
        ]

    together = stacked(model).train(sgd, tasks())
    for one, task in zip(together, tasks(), strict=True):
        torch.testing.assert_close(one, sgd.train(model, task), **CLOSE)
    assert torch.equal(together[2][~half], start[~half])


def test_the_starting_points_are_left_as_they_were() -> None:
    model = initialised(perceptron)
    tasks = tasks_of(model, [12, 12])
    before = [task.start.clone() for task in tasks]
    stacked(model).train(Sgd(batch_size=5, epochs=1), tasks)
    assert all(torch.equal(task.start, start) for task, start in zip(tasks, before, strict=True))


def test_scoring_together_is_scoring_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = initialised(perceptron)
    theta, same = model.read(), points(9, 1, stream(1))
    pairs = [
        (theta, points(4, 0, stream(0))),
        (theta + 0.1, same),
        (theta - 0.1, same),
        (theta, points(1, 2, stream(2))),
    ]
    for at_once in (4_000_000, 40):  # all of them, and two at a time
        monkeypatch.setattr("fedfomo.core.vectorised.SCORED_AT_ONCE", at_once)
        for (theta, examples), score in zip(pairs, stacked(model).score(pairs), strict=True):
            alone = model.score(theta, examples)
            assert score.loss == pytest.approx(alone.loss, rel=1e-5)
            assert (score.metric, score.num_examples) == (alone.metric, alone.num_examples)


def test_no_examples_give_no_score() -> None:
    model = initialised(perceptron)
    pairs = [(model.read(), points(0, 0, stream(0))), (model.read(), points(3, 0, stream(0)))]
    nothing, something = stacked(model).score(pairs)
    assert nothing.loss != nothing.loss
    assert nothing.num_examples == 0
    assert something.loss == pytest.approx(model.loss(*pairs[1]), rel=1e-5)


class LooksAcross(nn.Module):
    """Centres the batch: an example's output depends on its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs - inputs.mean(0))


class Branches(nn.Module):
    """Decides by a value, which a batched computation cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.linear(inputs)
        return outputs if bool(outputs.sum() > 0) else -outputs


@pytest.mark.parametrize(
    "build",
    [
        with_batch_norm,
        with_dropout,
        LooksAcross,
        Branches,
        lambda: nn.Sequential(nn.Unflatten(1, (1, 1, 2)), nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(2, 3)),
        lambda: nn.Sequential(nn.Linear(2, 40_000), nn.Linear(40_000, 3)),
    ],
)
def test_what_cannot_or_should_not_be_stacked_is_not(build: Callable[[], nn.Module]) -> None:
    assert Stack.of(initialised(build), points(6, 0, stream(0))) is None


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(5, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)),
    )


def images(size: int, seed: int) -> Examples:
    rng = stream(seed)
    return Examples(torch.randn(size, 2, 8, 8, generator=rng), torch.randint(3, (size,), generator=rng))


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_are_stacked_on_accelerators_and_give_what_they_give_alone(
    channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(initialised(convolutions).architecture, channels_last=channels_last)
    assert Stack.of(model, images(6, 0)) is None  # on this processor it would be no gain
    monkeypatch.setattr(vectorised, "pays", lambda model: True)  # as on an accelerator
    stack, sgd = Stack.of(model, images(6, 0)), Sgd(batch_size=5, epochs=2, momentum=0.5)
    assert stack is not None

    def tasks() -> list[TrainingJob]:
        sizes = enumerate((12, 3, 20, 0))
        return [TrainingJob(model.read() + 0.01 * n, images(size, n), 1, stream(7, n)) for n, size in sizes]

    trained = stack.train(sgd, tasks())
    for one, task in zip(trained, tasks(), strict=True):
        torch.testing.assert_close(one, sgd.train(model, task), **CLOSE)
    pairs = [(theta, images(9, n)) for n, theta in enumerate(trained)]
    for (theta, examples), score in zip(pairs, stack.score(pairs), strict=True):
        alone = model.score(theta, examples)
        assert score.loss == pytest.approx(alone.loss, rel=1e-5)
        assert score.metric == alone.metric


@pytest.mark.parametrize("network", ["small_cnn", "mcmahan_cnn"])
def test_a_federation_of_convolutions_is_the_same_stacked_and_one_by_one(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectorised, "pays", lambda model: True)  # as on an accelerator
    module = NETWORKS[network]((1, 28, 28), 3)
    model = Model(module, channels_last=True)

    def some(size: int, seed: int) -> Examples:
        rng = stream(seed)
        return Examples(torch.randn(size, 1, 28, 28, generator=rng), torch.randint(3, (size,), generator=rng))

    clients = [ClientData(some(12, 3 * n), some(6, 3 * n + 1), some(6, 3 * n + 2)) for n in range(3)]
    problem = FederatedProblem(model, model.read(), clients, Sgd(epochs=1, batch_size=5), seed=0)
    assert problem.stack_of(model) is not None
    stacked, alone = (
        simulate(problem, make_algorithm("fedfomo"), SimulationConfig(rounds=2, vectorise=together)).models
        for together in (True, False)
    )
    for client, theta in alone.items():
        torch.testing.assert_close(stacked[client], theta, rtol=1e-3, atol=1e-5)


def test_labels_of_several_values_are_stacked_too() -> None:
    inputs = torch.randn(7, 2, generator=stream(3))
    for loss, labels in (
        (nn.functional.mse_loss, torch.randn(7, 3, generator=stream(4))),
        (nn.functional.binary_cross_entropy_with_logits, torch.randint(2, (7, 3), generator=stream(4)).float()),
    ):
        examples = Examples(inputs, labels)
        model = Model(perceptron(), loss, lambda outputs, labels: -(outputs - labels).abs().mean(1))
        stack = Stack.of(model, examples)
        assert stack is not None
        task = TrainingJob(model.read(), examples, 0, stream(5))
        again = TrainingJob(model.read(), examples, 0, stream(5))
        sgd = Sgd(batch_size=3, epochs=2)
        torch.testing.assert_close(stack.train(sgd, [task])[0], sgd.train(model, again), **CLOSE)
        assert stack.score([(model.read(), examples)])[0].loss == pytest.approx(model.loss(model.read(), examples))


def test_a_loss_in_which_examples_count_differently_is_not_stacked() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 1.0]))

    def by_class(outputs: Tensor, labels: Tensor) -> Tensor:
        return weighted(outputs, labels)

    def by_frequency(outputs: Tensor, labels: Tensor) -> Tensor:  # among others' examples it is another
        counts = torch.bincount(labels, minlength=3)[labels]
        return nn.functional.cross_entropy(outputs, labels, reduction="none") * len(labels) / counts

    alike = Examples(torch.randn(9, 2, generator=stream(3)), torch.zeros(9, dtype=torch.int64))
    assert Stack.of(Model(perceptron(), weighted), alike) is None  # though among these it would make no difference
    for loss in (by_class, by_frequency):
        assert Stack.of(Model(perceptron(), loss), points(6, 0, stream(0))) is None


def test_a_loss_that_is_a_mean_cannot_be_stacked_and_one_per_example_can() -> None:
    def mean(outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    examples = points(6, 0, stream(0))
    assert Stack.of(Model(perceptron(), mean), examples) is None
    assert Stack.of(Model(perceptron(), per_example(nn.functional.cross_entropy)), examples) is not None
    assert Stack.of(Model(perceptron()), Examples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))) is None
