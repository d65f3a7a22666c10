"""FedAvg inside the true groups, worked by hand."""

from dataclasses import replace

import pytest

from fedfomo.algorithms.fedavg import FedAvg, Upload
from fedfomo.algorithms.local import Local
from fedfomo.algorithms.oracle import Oracle, State
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, ids, point, points_problem, scalar_problem, start_of


def test_groups_go_by_the_name_of_their_first_client() -> None:
    state = Oracle().start_server(replace(start_of(4, 9.0), groups=(7, 3, 7, 3)))
    assert state.groups.tolist() == [0, 1, 0, 1]
    assert {group: model.item() for group, model in state.models.items()} == {0: 9.0, 1: 9.0}


def test_each_group_has_its_average() -> None:
    # Halfway from 0 to 8 and to 4: (4 + 2)/2 = 3. The other group goes halfway to −4.
    problem = replace(scalar_problem([(8.0, 0.0), (-4.0, 0.0), (4.0, 0.0)]), groups=(1, 0, 1))
    models = simulate(problem, Oracle(), SimulationConfig(rounds=1)).models
    assert [models[n].item() for n in range(3)] == [3.0, -2.0, 3.0]


def test_a_foreign_target_gets_the_model_of_its_own_group() -> None:
    # As above, but client 0 aims at what client 1 trains on: it helps its group to 3 and uses the other's −2.
    problem = replace(scalar_problem([(8.0, 0.0), (-4.0, 0.0), (4.0, 0.0)]), groups=(1, 0, 1), targets=(0, 0, 1))
    result = simulate(problem, Oracle(), SimulationConfig(rounds=1))
    assert [result.models[n].item() for n in range(3)] == [-2.0, -2.0, 3.0]
    nobody = replace(start_of(2, 0.0), groups=(4, 4), targets=(5, 4))
    assert Oracle().start_server(nobody).targets.tolist() == [-1, 0]


def test_averages_count_examples_and_a_silent_group_stays() -> None:
    before = State({0: point(0), 1: point(5)}, ids(0, 1, 0), ids(0, 1, 0))
    after = Oracle().aggregate(before, {0: Upload(point(4), 3), 2: Upload(point(8), 1)})
    assert {group: model.item() for group, model in after.models.items()} == {0: 5.0, 1: 5.0}
    assert {group: model.item() for group, model in Oracle().aggregate(before, {}).models.items()} == {0: 0.0, 1: 5.0}


def test_a_scenario_without_groups_is_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"this scenario has none: choose a scenario of groups \(latent, ood\)"):
        simulate(scalar_problem([(8.0, 0.0)]), Oracle(), SimulationConfig(rounds=1))


def test_one_group_is_fedavg_and_a_group_each_is_local_training() -> None:
    problem = points_problem()
    plan = SimulationConfig(rounds=3)
    together = simulate(replace(problem, groups=(2,) * 6), Oracle(), plan).models
    assert digest(together) == digest(simulate(problem, FedAvg(), plan).models)
    apart = simulate(replace(problem, groups=tuple(range(6))), Oracle(), plan).models
    assert digest(apart) == digest(simulate(problem, Local(), plan).models)
