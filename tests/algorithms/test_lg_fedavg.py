"""Local and global layers, worked by hand."""

import pytest
import torch
from torch import nn

from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.lg_fedavg import (
    Download,
    LgFedAvg,
    Memory,
    State,
    Upload,
    global_coordinates,
    join,
    validate_part,
)
from fedfomo.algorithms.local import Local
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import stream
from fedfomo.core.round import run_round
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import InProcess, client_of, digest, federation_of, ids, point, points_problem, with_batch_norm
from two_layer_model import sum_problem

HEAD_IS_GLOBAL = LgFedAvg(warm_up=0.0)
UPPER = torch.tensor([False, True])


def test_parts_are_joined_under_the_mask() -> None:
    mask = torch.tensor([True, False, True])
    assert join(mask, point(1, 2), point(9)).tolist() == [1.0, 9.0, 2.0]
    assert validate_part("x", point(1, 2), 2) is None
    assert validate_part("x", point(1, 2), 3) == "'x' has 2 coordinates where 3 are shared"


def test_upper_layers_are_the_last_half_rounded_up() -> None:
    # Five layers of 2 coordinates (weight and bias): ⌈2.5⌉ = 3 of them, as in the authors' perceptron.
    layout = Layout.of(nn.Sequential(*(nn.Linear(1, 1) for _ in range(5))))
    assert global_coordinates(layout, "upper", 0.5).tolist() == [False] * 4 + [True] * 6
    assert global_coordinates(layout, "auto", 0.4).tolist() == [False] * 6 + [True] * 4
    assert not global_coordinates(layout, "upper", 0.0).any()
    assert global_coordinates(layout, "upper", 1.0).all()


def test_convolutions_are_global_with_their_buffers_left_to_others() -> None:
    # 1·1·3·3 + 1 = 10 coordinates of the convolution, 2 of BatchNorm, 2 of the linear layer, 2 buffers of BatchNorm.
    network = nn.Sequential(nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(1, 1))
    layout = Layout.of(network)
    for part in ("conv", "auto"):
        assert global_coordinates(layout, part, 0.5).tolist() == [True] * 10 + [False] * 6
    # BatchNorm is a layer like others: the last two of three, and the buffers that belong to them.
    assert global_coordinates(layout, "upper", 0.5).tolist() == [False] * 10 + [True] * 6


def test_a_network_without_convolutions_is_named() -> None:
    with pytest.raises(InputError, match="no convolutions to be global: choose global_part=upper"):
        LgFedAvg(global_part="conv").start_server(points_problem().start(2))


def test_heads_are_averaged_alike_and_bodies_kept() -> None:
    # All layers train together and reach the targets: (4, 4) and (−2, −2). The heads' plain mean is 1,
    # although one client has three examples.
    problem = sum_problem([(8.0, 8.0, 8.0), (-4.0,)])
    models = simulate(problem, HEAD_IS_GLOBAL, SimulationConfig(rounds=1)).models
    assert (models[0].tolist(), models[1].tolist()) == ([4.0, 1.0], [-2.0, 1.0])


def test_the_warm_up_is_fedavg() -> None:
    # Weighted by examples: (3·4 − 2)/4 in both coordinates.
    problem = sum_problem([(8.0, 8.0, 8.0), (-4.0,)])
    models = simulate(problem, LgFedAvg(warm_up=1.0), SimulationConfig(rounds=1)).models
    assert models[0].tolist() == models[1].tolist() == [2.5, 2.5]


def test_only_global_coordinates_move_after_the_warm_up() -> None:
    # Two clients of two coordinates. Round 0, the warm-up: a model each way. Round 1: the last model of the
    # warm-up down, half a model up. At the end half a model down.
    traffic = simulate(sum_problem([(8.0,), (-4.0,)]), LgFedAvg(warm_up=0.5), SimulationConfig(rounds=2)).traffic
    assert (traffic.models_down, traffic.models_up) == (2 + 2 + 1, 2 + 1)


def test_who_joins_after_the_warm_up_gets_the_layers_that_it_left() -> None:
    problem, algorithm = sum_problem([(8.0,), (-4.0,)]), LgFedAvg(warm_up=0.5)
    federation, exchange = federation_of(problem, algorithm), InProcess(problem, algorithm)
    state = algorithm.start_server(problem.start(2))
    state = run_round(federation, state, 0, [0, 1], exchange).state  # warm-up: (4, 4) and (−2, −2), mean (1, 1)
    state = run_round(federation, state, 1, [0], exchange).state  # from (1, 1) to the sum 8: (4, 4)
    assert state.model.tolist() == [1.0, 4.0]
    downloads = [algorithm.configure_client(state, n, stream(0)).coordinates.tolist() for n in (0, 1)]
    assert downloads == [[4.0], [1.0, 4.0]]
    exchange(2, {1: algorithm.configure_client(state, 1, stream(0))})  # from (1, 4), gap 9, each half of it back
    assert exchange.memories[1].model.tolist() == [-3.5, -0.5]


def test_who_has_layers_of_its_own_keeps_them_even_if_the_server_does_not_know() -> None:
    client = client_of(sum_problem([(8.0,)]), 0)
    whole = Download(point(1, 2), is_warmup=False)
    kept = HEAD_IS_GLOBAL.personalise(client, whole, Memory(point(7, 8), is_settled=True))
    assert kept.model.tolist() == [7.0, 2.0]
    taken = HEAD_IS_GLOBAL.personalise(client, whole, Memory(point(7, 8), is_settled=False))
    assert taken.model.tolist() == [1.0, 2.0]


def test_a_part_of_another_size_is_refused() -> None:
    later, warming = (State(point(0, 0), UPPER, rounds, ids()) for rounds in (0, 1))
    part, whole = Upload(point(1), 1), Upload(point(1, 2), 1)
    assert HEAD_IS_GLOBAL.validate(later, part) is HEAD_IS_GLOBAL.validate(warming, whole) is None
    assert HEAD_IS_GLOBAL.validate(later, whole) == "'coordinates' has 2 coordinates where 1 are shared"
    assert HEAD_IS_GLOBAL.validate(warming, part) == "'coordinates' has 1 coordinates where 2 are shared"


def test_a_round_without_uploads_keeps_the_model_and_counts() -> None:
    state = HEAD_IS_GLOBAL.aggregate(State(point(3, 4), UPPER, 1, ids()), {})
    assert (state.model.tolist(), state.warmup_left) == ([3.0, 4.0], 0)
    assert HEAD_IS_GLOBAL.aggregate(state, {}) is state


def test_with_all_layers_global_it_is_fedavg() -> None:
    # Everybody has 12 examples, so that plain and weighted means are the same.
    for problem in (points_problem(), points_problem(build=with_batch_norm)):
        plain = simulate(problem, FedAvg(), SimulationConfig(rounds=3)).models
        for algorithm in (LgFedAvg(global_share=1.0, warm_up=0.0), LgFedAvg(global_share=1.0), LgFedAvg(warm_up=1.0)):
            assert digest(simulate(problem, algorithm, SimulationConfig(rounds=3)).models) == digest(plain)


def test_with_no_layer_global_it_is_local_training() -> None:
    for problem in (points_problem(), points_problem(build=with_batch_norm)):
        alone = simulate(problem, Local(), SimulationConfig(rounds=3)).models
        algorithm = LgFedAvg(global_share=0.0, warm_up=0.0)
        assert digest(simulate(problem, algorithm, SimulationConfig(rounds=3)).models) == digest(alone)


@pytest.mark.parametrize("option", ["global_share", "warm_up"])
def test_what_cannot_be_is_refused(option: str) -> None:
    with pytest.raises(InputError, match=rf"'{option}' .* must be between 0 and 1"):
        LgFedAvg(**{option: 1.5})  # type: ignore[arg-type]
