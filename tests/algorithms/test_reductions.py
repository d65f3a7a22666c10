"""Methods that become one another, bit for bit."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.fedavg_finetuned import FedAvgFineTuned
from fedfomo.algorithms.fedfomo import FedFomo, FedFomoAsCoded
from fedfomo.algorithms.fedfomo.averages import FedFomoAverages
from fedfomo.algorithms.local import Local
from fedfomo.core.local_training import ProximalTerm, Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.core.round import configure_clients, run_round
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import (
    ROUNDS,
    InProcess,
    digest,
    federation_of,
    fingerprint,
    points_problem,
    run_rounds,
    scalar_problem,
)

THREE_ROUNDS = SimulationConfig(rounds=3)


@dataclass(frozen=True)
class Pulled(Sgd):
    """A trainer that adds a pull to its objective, whatever the algorithm."""

    pull: ProximalTerm | None = None

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        return super().train(model, replace(task, penalty=self.pull))


def test_fedavg_of_one_client_is_local_training() -> None:
    problem = points_problem(num_clients=1)
    alone = simulate(problem, Local(), THREE_ROUNDS)
    averaged = simulate(problem, FedAvg(), THREE_ROUNDS)
    assert digest(averaged.models) == digest(alone.models)
    assert averaged.after_training == alone.after_training


def test_local_training_is_the_trainer_called_once_a_round() -> None:
    problem = points_problem(num_clients=2)
    theta = problem.initial
    for t in range(3):
        rng = stream(problem.seed, "train", t, 1)
        theta = problem.trainer.train(problem.model, TrainingJob(theta, problem.clients[1].train, t, rng))
    assert torch.equal(simulate(problem, Local(), THREE_ROUNDS).models[1], theta)


def test_fine_tuning_uploads_what_fedavg_uploads() -> None:
    problem = points_problem()
    uploads: dict[str, list[object]] = {}
    for name, algorithm in (
        ("plain", FedAvg()),
        ("gated", FedAvgFineTuned()),
        ("always", FedAvgFineTuned(gated=False)),
    ):
        exchange = InProcess(problem, algorithm)
        state = algorithm.start_server(problem.start(ROUNDS))
        uploads[name] = []
        for t in range(3):
            played = run_round(federation_of(problem, algorithm), state, t, range(6), exchange)
            state = played.state
            uploads[name].append((fingerprint(dict(played.uploads)), fingerprint(state)))
    assert uploads["plain"] == uploads["gated"] == uploads["always"]


def test_fine_tuning_is_one_more_round_of_training_on_the_global_model() -> None:
    problem = points_problem()
    state, global_models = run_rounds(problem, FedAvg(), InProcess(problem, FedAvg()), [range(6)] * 2)
    tuned = simulate(problem, FedAvgFineTuned(gated=False), SimulationConfig(rounds=2)).models
    for client, data in enumerate(problem.clients):
        rng = stream(problem.seed, "train", 2, client)
        assert torch.equal(
            tuned[client], problem.trainer.train(problem.model, TrainingJob(state.model, data.train, 2, rng))
        )
    gated = simulate(problem, FedAvgFineTuned(), SimulationConfig(rounds=2)).models
    for client, data in enumerate(problem.clients):
        choices = {problem.model.loss(m, data.validation): m for m in (tuned[client], global_models[client])}
        assert torch.equal(gated[client], choices[min(choices)])


def test_a_gate_refuses_what_validation_does_not_like() -> None:
    # Trained from 0 to the average of 4 and −4, which is 0; then tuned to 4 and −4. Validation wants 3 and 1.
    problem = scalar_problem([(8.0, 3.0), (-8.0, 1.0)])
    gated = simulate(problem, FedAvgFineTuned(), SimulationConfig(rounds=1)).models
    always = simulate(problem, FedAvgFineTuned(gated=False), SimulationConfig(rounds=1)).models
    assert (always[0].item(), always[1].item()) == (4.0, -4.0)
    assert (gated[0].item(), gated[1].item()) == (4.0, 0.0)


def test_a_pull_of_no_strength_is_no_pull() -> None:
    problem = points_problem()
    pull = ProximalTerm(torch.randn(len(problem.initial), generator=stream(0)), 0.0)
    pulled = replace(problem, trainer=Pulled(batch_size=5, epochs=1, pull=pull))
    assert digest(simulate(pulled, FedAvg(), THREE_ROUNDS).models) == digest(
        simulate(problem, FedAvg(), THREE_ROUNDS).models
    )


def test_fedfomo_of_one_client_is_local_training_with_early_stopping() -> None:
    problem = points_problem(num_clients=1)
    data, model = problem.clients[0], problem.model
    reference = own = problem.initial
    for t in range(4):
        if model.loss(own, data.validation) < model.loss(reference, data.validation):
            reference = own
        own = problem.trainer.train(model, TrainingJob(reference, data.train, t, stream(problem.seed, "train", t, 0)))
    better = own if model.loss(own, data.validation) < model.loss(reference, data.validation) else reference
    assert torch.equal(simulate(problem, FedFomo(), SimulationConfig(rounds=4)).models[0], better)


def test_fedfomo_in_its_first_round_trains_as_everybody_does() -> None:
    problem = points_problem()
    digests: set[str] = set()
    for algorithm in (Local(), FedAvg(), FedFomo(), FedFomoAverages()):
        exchange = InProcess(problem, algorithm)
        downloads = configure_clients(
            federation_of(problem, algorithm), algorithm.start_server(problem.start(ROUNDS)), 0, range(6)
        )
        uploads = dict(exchange(0, downloads))
        trained = {n: exchange.memories[n].own if isinstance(algorithm, Local) else uploads[n].model for n in range(6)}
        digests.add(digest(trained))
    assert len(digests) == 1


def test_fedfomo_among_equals_is_local_training() -> None:
    # Everybody has the same data and seeded order, so all models are one model, and what helps one helps all alike.
    problem = scalar_problem([(8.0, 8.0)] * 4)
    for rounds in (1, 2, 3):
        alone = simulate(problem, Local(), SimulationConfig(rounds=rounds)).models
        assert digest(simulate(problem, FedFomo(), SimulationConfig(rounds=rounds)).models) == digest(alone)


def test_few_downloads_at_random_are_the_same_in_the_simulator_as_in_a_plain_loop() -> None:
    problem = points_problem()
    algorithm = FedFomo(num_downloads=1, epsilon=1.0, epsilon_decay=0.0)
    _, models = run_rounds(problem, algorithm, InProcess(problem, algorithm), [range(6)] * 3)
    assert digest(simulate(problem, algorithm, THREE_ROUNDS).models) == digest(models)


def test_more_downloads_than_clients_are_as_many_as_there_are() -> None:
    problem = points_problem()
    exact = simulate(problem, FedFomo(num_downloads=5), THREE_ROUNDS)
    assert digest(simulate(problem, FedFomo(num_downloads=50), THREE_ROUNDS).models) == digest(exact.models)


def test_with_everybody_present_the_latest_uploads_are_the_last_rounds() -> None:
    problem = points_problem()
    latest = simulate(
        problem,
        FedFomoAsCoded(2, norm="l2", affinity_update="raw", num_averages=0, availability="latest"),
        THREE_ROUNDS,
    )
    assert digest(latest.models) == digest(simulate(problem, FedFomo(num_downloads=2), THREE_ROUNDS).models)
