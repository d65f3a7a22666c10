"""HypCluster: FedAvg among those who prefer the same hypothesis."""

import pytest

from fedfomo.algorithms.fedavg import FedAvg, Upload
from fedfomo.algorithms.ifca import Choice, HypCluster, State
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, point, points_problem, scalar_problem, start_of


def chosen(cluster: int, x: float, num_examples: int = 1) -> Choice:
    return Choice(cluster, Upload(point(x), num_examples))


def test_hypotheses_are_averaged_by_numbers_of_examples() -> None:
    # Hypothesis 0: (9·1 + 1·3)/10 = 1.2. Hypothesis 1 was chosen by nobody.
    state = State((point(0), point(5)), True, 1, None)
    after = HypCluster(2).aggregate(state, {0: chosen(0, 1.0, 9), 1: chosen(0, 3.0, 1)})
    assert [model.item() for model in after.models] == pytest.approx([1.2, 5.0])


def test_the_first_round_seeds_the_hypotheses() -> None:
    # Of 4, −4 and 5, with mean 5/3: take 4 and −4, in the order of clients.
    algorithm = HypCluster(2)
    state = algorithm.start_server(start_of(3, 0.0))
    after = algorithm.aggregate(state, {n: chosen(0, x) for n, x in enumerate((4.0, -4.0, 5.0))})
    assert [model.item() for model in after.models] == [4.0, -4.0]


def test_a_whole_run_of_two_kinds() -> None:
    # Round 1: 0 → 4 and −4, which become the hypotheses. Round 2: 4 → 6 and −4 → −6.
    problem = scalar_problem([(8.0, 8.0), (-8.0, -8.0), (8.0, -8.0)])
    result = simulate(problem, HypCluster(2), SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == {0: 6.0, 1: -6.0, 2: -6.0}


@pytest.mark.parametrize("seeding", ["clients", "random"])
def test_one_hypothesis_is_fedavg(seeding: str) -> None:
    problem, plan = points_problem(sizes={1: (7, 4)}), SimulationConfig(rounds=3)
    alone = simulate(problem, HypCluster(1, seeding=seeding), plan)  # type: ignore[arg-type]
    assert digest(alone.models) == digest(simulate(problem, FedAvg(), plan).models)


def test_rounds_without_uploads_change_nothing() -> None:
    algorithm = HypCluster(2)
    state = algorithm.start_server(start_of(3, 0.0))
    assert algorithm.aggregate(state, {}) is state


def test_what_cannot_be_is_refused() -> None:
    assert HypCluster(2).validate(State((point(0),), True, 1, None), chosen(1, 1.0)) == "there is no cluster 1"
    with pytest.raises(InputError, match=r"'num_hypotheses' .* must be at least 1, not 0"):
        HypCluster(0)
