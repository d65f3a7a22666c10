"""Differential privacy with any torch optimiser: the same clipped, noisy gradient; what cannot have it is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from fedfomo import OwnLoop, Privacy, Sgd, Trainer
from fedfomo.algorithms import make_algorithm
from fedfomo.core.data import Examples
from fedfomo.core.local_training import TrainingJob
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.privacy.dp_sgd import DpSgd
from fedfomo.privacy.private_data import BudgetTracker, PrivateExamples, SeededNoise
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from fedfomo.testing.toy_federation import digest_of
from toy_problems import initialised, perceptron, points, points_problem, with_batch_norm

TWO = SimulationConfig(rounds=2)
PRIVACY = Privacy(noise=1.0, delta=1e-3, validation_noise=1.0)


def private(examples: Examples) -> PrivateExamples:
    return PrivateExamples(examples, ("training",), BudgetTracker(SeededNoise(stream(9)), {}, lambda ledger: True))


ADAM = Trainer(lambda params: AdamW(params, 0.01), batch_size=5, epochs=1)


def test_torchs_sgd_takes_the_same_noisy_steps() -> None:
    model, examples = initialised(perceptron), points(20, 0, stream(0))
    start = model.read()
    trained = [
        DpSgd(trainer, 1.0, 1.0).train(model, TrainingJob(start, private(examples), 0, stream(1)))
        for trainer in (
            Sgd(0.1, weight_decay=0.0, batch_size=5, epochs=2),
            Trainer(lambda params: SGD(params, 0.1), batch_size=5, epochs=2),
        )
    ]
    assert torch.allclose(*trained, atol=1e-6)


def test_every_optimiser_pays_what_sgd_pays() -> None:
    problem = replace(points_problem(), privacy=PRIVACY)
    sgd = Sgd(batch_size=5, epochs=1)
    results = [
        simulate(replace(problem, trainer=trainer), make_algorithm("fedfomo"), TWO)
        for trainer in (sgd, ADAM, replace(ADAM, keep_state=True), replace(ADAM, transform=lambda x: x + 0.1))
    ]
    assert all(result.spent == results[0].spent for result in results)
    assert len({digest_of(result) for result in results}) == 4
    again = simulate(replace(problem, trainer=ADAM), make_algorithm("fedfomo"), replace(TWO, workers=2))
    assert digest_of(again) == digest_of(results[1])


@pytest.mark.parametrize("method", ["apfl", "per-fedavg", "ditto"])
def test_methods_with_steps_of_their_own_are_private_too(method: str) -> None:
    problem = replace(points_problem(), privacy=PRIVACY, trainer=ADAM)
    spent = simulate(problem, make_algorithm(method), TWO).spent
    assert spent is not None
    assert all(epsilons.training > 0 for epsilons in spent.values())


def test_what_is_kept_trains_on_noisy_gradients_as_well() -> None:
    problem = replace(points_problem(), keep=("2.*",))
    split = problem.split(make_algorithm("fedavg")).model
    whole = initialised(perceptron)
    examples = points(20, 0, stream(0))
    theta = DpSgd(ADAM, 0.0, 1.0).train(split, TrainingJob(split.read(), private(examples), 0, stream(1)))
    alone = DpSgd(ADAM, 0.0, 1.0).train(whole, TrainingJob(whole.read(), private(examples), 0, stream(1)))
    assert torch.allclose(split.export(theta, split.kept_values), alone, atol=1e-6)


class FrozenNorm(nn.Module):
    """BatchNorm that is frozen mixes no records."""

    def __init__(self) -> None:
        super().__init__()
        self.body = with_batch_norm()[:3].requires_grad_(False)  # type: ignore[index]
        self.head = nn.Linear(100, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))


def test_frozen_batch_norm_is_no_obstacle() -> None:
    problem = replace(points_problem(build=FrozenNorm), privacy=PRIVACY, trainer=ADAM)
    assert simulate(problem, make_algorithm("fedavg"), TWO).spent


def never(*_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("trainer", "words"),
    [(OwnLoop(never), "cannot reach in a training loop of your own"), (replace(ADAM, amp=True), "leave out amp")],
)
def test_what_cannot_be_private_is_refused(trainer: Trainer | OwnLoop, words: str) -> None:
    with pytest.raises(InputError, match=words):
        simulate(replace(points_problem(), privacy=PRIVACY, trainer=trainer), make_algorithm("fedavg"), TWO)


def test_private_examples_are_transformed_only_when_they_are_opened() -> None:
    batch = next(
        DpSgd(replace(ADAM, transform=never), 1.0, 1.0).batches(private(points(20, 0, stream(0))), 1, stream(1))
    )
    assert isinstance(batch, PrivateExamples)
