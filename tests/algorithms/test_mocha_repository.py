"""The published form of MOCHA for networks: its penalty as written there, errors included."""

import math

import pytest
import torch

from fedfomo.algorithms import mocha_repository
from fedfomo.algorithms.local import Local
from fedfomo.algorithms.mocha_repository import Download, MochaRepository, State, SumPenalty, Upload, factor_of
from fedfomo.core.rng import stream
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import points_problem, start_of


def test_the_factor_falls_with_the_number_of_parameters() -> None:
    # ⌊log₁₀ d + 1⌋ + 1: 1,203 has log₁₀ 3.08, so f = 5; the 64,000 of its CIFAR network give 6.
    assert factor_of(1203) == pytest.approx(1e-5)
    assert factor_of(64_000) == pytest.approx(1e-6)


def test_the_penalty_is_the_one_that_was_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    # 90 rows in blocks of 40: two blocks in the trace, all in the norm; Ω as computed there, ones for the identity.
    monkeypatch.setattr(mocha_repository, "ROWS_AT_ONCE", 40)
    num_rows, m = 90, 3
    columns = torch.randn(num_rows, m, generator=stream(0), dtype=torch.float64)
    ones = torch.ones(m, 1, dtype=torch.float64)
    relation = (torch.ones(m, m, dtype=torch.float64) - ones @ ones.T / m) ** 2
    own = columns[:, 0].clone().requires_grad_()
    whole = torch.cat((own[:, None], columns[:, 1:]), dim=1)
    blocks = whole[:80]
    term = whole.norm() ** 2 + (blocks @ relation @ blocks.T).trace()
    (term * 10.0 ** -(int(math.log10(num_rows) + 1) + 1)).backward()
    gradient = torch.zeros(num_rows, dtype=torch.float64)
    SumPenalty(columns[:, 1:].sum(dim=1), m).add_gradient(gradient, own.detach())
    assert own.grad is not None
    assert torch.allclose(gradient, own.grad)


def test_a_client_hears_of_the_others_only() -> None:
    state = State({0: torch.tensor([2.0]), 1: torch.tensor([9.0]), 2: torch.tensor([4.0])})
    download = MochaRepository().configure_client(state, 1, stream(0))
    assert (download.mean, download.num_others) == (torch.tensor([3.0]), 2)


def test_a_round_without_uploads_keeps_the_models() -> None:
    state = MochaRepository().start_server(start_of(2, 1.0))
    assert MochaRepository().aggregate(state, {}).models == state.models
    heard = MochaRepository().aggregate(state, {1: Upload(torch.tensor([5.0]))})
    assert list(heard.models) == [1]


def test_a_lone_client_has_no_others() -> None:
    state = MochaRepository().start_server(start_of(1, 1.0))
    assert MochaRepository().configure_client(state, 0, stream(0)) == Download(None, 0)


def test_it_is_all_but_local_training() -> None:
    # The norm's gradient is 2 · 10⁻⁵ w, a fifth of the weight decay that is there anyway.
    problem = points_problem()
    alone = simulate(problem, Local(), SimulationConfig(rounds=3)).models
    for client, model in simulate(problem, MochaRepository(), SimulationConfig(rounds=3)).models.items():
        moved = (alone[client] - problem.initial).norm()
        assert 0 < (model - alone[client]).norm() < 1e-3 * moved
