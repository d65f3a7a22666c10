"""Work is cut so that nobody waits, and where it is cut makes no difference."""

from collections.abc import Sequence

import pytest
import torch

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.scheduling import BatchPolicy, RoundSchedule
from fedfomo.simulation.simulate import simulate
from fedfomo.simulation.worker import Batch, ClientJob, ClientResult
from toy_problems import points_problem

PAPERS = BatchPolicy(is_stacked=False, workers=2, model_bytes=490_280, may_split=True)


def _part(client: int, trains: bool = True) -> ClientJob:
    return ClientJob(client, {}, None, trains, is_scored=True, bill=[], attempts=1, model=None)


def _outcome(part: ClientJob) -> ClientResult:
    upload = {"model": "="} if part.trains else None
    return ClientResult(
        part.client,
        {},
        {"": f"={part.client}"},
        upload,
        None,
        None,
        3,
        [],
        is_spent=False,
        is_rolled_back=False,
        losses=[0.5],
    )


def _finish(orders: RoundSchedule, workers: int, personalising: float) -> tuple[float, list[ClientJob]]:
    """Work through the orders as idle workers would, and return when the last is done, and all parts."""
    free = [0.0] * workers
    parts: list[ClientJob] = []
    for order in orders:
        worker = free.index(min(free))
        for part in order.parts:
            free[worker] += (part.update is None) * personalising + part.trains * (1 - personalising)
            assert orders.is_whole(_outcome(part)) == part.trains
            parts.append(part)
    return max(free), parts


@pytest.mark.parametrize(("clients", "workers"), [(15, 2), (15, 4), (7, 3), (31, 2)])
def test_nobody_waits_for_the_client_that_is_one_too_many(clients: int, workers: int) -> None:
    grouping = BatchPolicy(False, workers, 490_280, may_split=True)
    uncut = RoundSchedule(0, [_part(client) for client in range(clients)], BatchPolicy(False, workers, 490_280))
    cut = RoundSchedule(0, [_part(client) for client in range(clients)], grouping)
    before, _ = _finish(uncut, workers, 0.12)
    after, parts = _finish(cut, workers, 0.12)
    assert before == pytest.approx(-(-clients // workers))
    assert after < before
    assert sorted(part.client for part in parts if part.trains) == list(range(clients))
    assert sorted(part.client for part in parts if part.update is None) == list(range(clients))


def test_fifteen_clients_on_two_workers_take_little_longer_than_half_of_fifteen() -> None:
    after, _ = _finish(RoundSchedule(0, [_part(client) for client in range(15)], PAPERS), 2, 0.12)
    assert 7.5 <= after < 7.6


def test_who_trains_later_is_told_what_it_found_before() -> None:
    orders = RoundSchedule(0, [_part(client) for client in range(15)], PAPERS)
    _, parts = _finish(orders, 2, 0.12)
    late = [part for part in parts if part.update is not None]
    assert len(late) == 7
    for part in late:
        assert part.update is not None
        assert (part.update.gradients, part.update.losses) == (3, [0.5])
        assert part.memory == {"": f"={part.client}"}


def test_a_client_whose_update_is_still_in_the_making_is_left_whole() -> None:
    orders: Sequence[Batch] = list(RoundSchedule(0, [_part(client) for client in range(15)], PAPERS))
    assert all(part.update is None for order in orders for part in order.parts)


@pytest.mark.parametrize("clients", [1, 2, 14, 33, 100])
def test_work_that_divides_evenly_or_is_long_is_not_cut(clients: int) -> None:
    orders = RoundSchedule(0, [_part(client) for client in range(clients)], PAPERS)
    assert [part.client for order in orders for part in order.parts] == list(range(clients))


def test_clients_that_do_not_train_are_not_cut() -> None:
    orders = RoundSchedule(0, [_part(client, trains=False) for client in range(15)], PAPERS)
    assert [len(order.parts) for order in orders] == [1] * 15


@pytest.mark.parametrize("method", ALGORITHMS)
def test_where_work_is_cut_changes_no_bit(method: str) -> None:
    problem = points_problem(num_clients=5)
    results = [
        simulate(problem, make_algorithm(method), SimulationConfig(rounds=3, workers=workers)) for workers in (0, 2, 3)
    ]
    for result in results[1:]:
        assert all(torch.equal(result.models[client], model) for client, model in results[0].models.items())
        assert result.after_update == results[0].after_update
        assert result.after_training == results[0].after_training
        assert (result.gradients, result.traffic) == (results[0].gradients, results[0].traffic)
