"""Every method that sends trains privately, without knowing, or is refused: records would leave it past the noise."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.local_training import Sgd
from fedfomo.errors import InputError
from fedfomo.privacy.config import Privacy
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import KeepLines, digest, points_problem

PRIVACY = Privacy(noise=1.0, delta=1e-3, validation_noise=4.0)
TWO_ROUNDS = SimulationConfig(rounds=2)

READ_RECORDS = [name for name, method in ALGORITHMS.items() if method.reads_records]
JUDGE_BY_TRAINING = [name for name, method in ALGORITHMS.items() if method.evaluates_on == "training"]
ALONE = ("local", "local-all")  # nothing of them ever leaves
PRIVATE = [name for name in ALGORITHMS if name not in (*READ_RECORDS, *ALONE)]


@pytest.mark.parametrize("name", PRIVATE)
def test_a_method_trains_privately_and_pays(name: str) -> None:
    problem = replace(points_problem(), privacy=PRIVACY)
    result = simulate(problem, make_algorithm(name), TWO_ROUNDS)
    assert all(bool(torch.isfinite(model).all()) for model in result.models.values())
    assert result.spent is not None
    # Two epochs of three steps at least, at a chance of 5 in 12: nobody trains for less.
    assert all(4.5 < spent.training < 100 for spent in result.spent.values())
    assert all(0 <= spent.validation < 100 for spent in result.spent.values())
    again = simulate(problem, make_algorithm(name), replace(TWO_ROUNDS, workers=2))
    assert digest(again.models) == digest(result.models)
    assert again.spent == result.spent


@pytest.mark.parametrize("name", ALONE)
def test_who_trains_alone_needs_no_noise_and_pays_nothing(name: str) -> None:
    plain = simulate(points_problem(), make_algorithm(name), TWO_ROUNDS)
    private = simulate(replace(points_problem(), privacy=PRIVACY), make_algorithm(name), TWO_ROUNDS)
    assert digest(private.models) == digest(plain.models)
    assert private.spent is not None
    assert all(spent.headline == 0 for spent in private.spent.values())


@pytest.mark.parametrize("name", READ_RECORDS)
def test_a_method_that_reads_records_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="past the noise"):
        simulate(replace(points_problem(), privacy=PRIVACY), make_algorithm(name), TWO_ROUNDS)
    with pytest.raises(InputError, match="past the noise"):  # in worker processes too
        simulate(replace(points_problem(), privacy=PRIVACY), make_algorithm(name), replace(TWO_ROUNDS, workers=2))


@pytest.mark.parametrize("name", JUDGE_BY_TRAINING)
def test_a_method_that_judges_by_training_records_wants_a_noisy_judge(name: str) -> None:
    problem = replace(points_problem(), privacy=replace(PRIVACY, validation_noise=None))
    with pytest.raises(InputError, match="evaluates models on training records"):
        simulate(problem, make_algorithm(name), TWO_ROUNDS)


@pytest.mark.parametrize("name", [name for name in PRIVATE if name not in JUDGE_BY_TRAINING])
def test_every_other_method_does_without(name: str) -> None:
    problem = replace(points_problem(), privacy=replace(PRIVACY, validation_noise=None))
    assert simulate(problem, make_algorithm(name), TWO_ROUNDS).spent is not None


def test_of_a_private_mixture_only_the_shared_expert_is_noisy() -> None:
    algorithm = make_algorithm("private-mixture", {"shared_learns_from": "itself"})
    problem = points_problem()

    def models(noise: float) -> torch.Tensor:
        private = replace(problem, privacy=Privacy(noise=noise, delta=1e-3, clip=100.0))
        return simulate(private, algorithm, SimulationConfig(rounds=1)).models[0]

    layout = problem.model_of(algorithm).layout
    gap = models(1.0) - models(0.0)
    assert float(gap[layout.coordinates_below("shared")].abs().max()) > 1
    # What stays saw a noisy neighbour, yet no noise of its own: the gate's hidden features alone differ.
    assert float(gap[layout.coordinates_below("private")].abs().max()) < 1
    spent = simulate(
        replace(problem, privacy=Privacy(noise=1.0, delta=1e-3)), algorithm, SimulationConfig(rounds=1)
    ).spent
    plain = simulate(
        replace(problem, privacy=Privacy(noise=1.0, delta=1e-3)), make_algorithm("fedavg"), SimulationConfig(rounds=1)
    )
    assert spent == plain.spent


@pytest.mark.parametrize(
    ("name", "stops"), [("fedavg", False), ("ditto", False), ("apfl", False), ("per-fedavg", False), ("pfedme", True)]
)
def test_who_uses_a_sample_twice_reaches_its_epsilon_before_the_last_round(name: str, stops: bool) -> None:
    privacy = Privacy(epsilon=3.0, delta=1e-3)
    problem = replace(points_problem(), trainer=Sgd(batch_size=5, epochs=2), privacy=privacy)
    lines: list[dict[str, Any]] = []
    simulate(problem, make_algorithm(name), SimulationConfig(rounds=3), callback=KeepLines(lines))
    assert bool(lines[-1]["budget_spent"]) == stops


def test_model_averages_are_judged_privately_too() -> None:
    result = simulate(replace(points_problem(), privacy=PRIVACY), make_algorithm("fedfomo-averages"), TWO_ROUNDS)
    assert result.spent is not None
    assert all(spent.validation > 0 for spent in result.spent.values())
