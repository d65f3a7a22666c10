"""Work is cut into batches, and where it is cut makes no difference."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.sparse import SparseMatrix
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.scheduling import BatchPolicy, ClientJob, ClientResult
from fedfomo.simulation.simulate import simulate
from fedfomo.simulation.transport import SimulatedTransport
from toy_problems import points_problem


def _jobs(clients: Sequence[int]) -> list[ClientJob]:
    return [
        ClientJob(client, {}, None, trains=True, is_scored=True, ledger=[], attempts=1, model=None)
        for client in clients
    ]


@pytest.mark.parametrize("clients", [1, 2, 14, 33, 100, 1000])
@pytest.mark.parametrize("is_stacked", [False, True])
def test_every_client_is_in_one_batch_in_the_sequence_given(clients: int, is_stacked: bool) -> None:
    policy = BatchPolicy(is_stacked, 2, 490_280)
    batches = list(policy.batches(7, range(clients), _jobs, "ab"))
    assert [job.client for batch in batches for job in batch.jobs] == list(range(clients))
    assert all(len(batch.jobs) <= policy.size(clients) for batch in batches)
    assert len({batch.file for batch in batches}) == len(batches)
    assert all(batch.round == 7 and "00007" in batch.file and "ab" in batch.file for batch in batches)


def test_few_clients_are_one_batch_each() -> None:
    assert [len(batch.jobs) for batch in BatchPolicy(False, 2, 490_280).batches(0, range(15), _jobs)] == [1] * 15


def test_first_jobs_are_there_before_the_last_are_made() -> None:
    made: list[int] = []

    def jobs_of(clients: Sequence[int]) -> list[ClientJob]:
        made.extend(clients)
        return _jobs(clients)

    batches = BatchPolicy(True, 2, 1000).batches(0, range(10_000), jobs_of)
    assert len(next(batches).jobs) == 64
    assert made == list(range(64))
    assert sum(len(batch.jobs) for batch in batches) == 10_000 - 64
    assert made == list(range(10_000))


def test_stacked_batches_do_not_depend_on_the_number_of_workers() -> None:
    assert {BatchPolicy(True, workers, 1000).size(200) for workers in (0, 1, 2, 64)} == {16}


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


def test_who_took_from_nobody_has_a_row_without_entries() -> None:
    transport = object.__new__(SimulatedTransport)
    rest = {"upload": None, "score_after_update": None, "score_after_training": None, "gradients": 0, "ledger": []}
    flags: Any = {**rest, "exceeds_budget": False, "is_rolled_back": False, "losses": []}
    taken: dict[int, Any] = {0: ([], []), 1: ([0, 2], [0.25, 0.5]), 2: None}
    results = {client: ClientResult(client, {}, {}, taken=row, **flags) for client, row in taken.items()}
    transport._results = results  # pyright: ignore[reportPrivateUsage]
    matrix = SparseMatrix.zeros(3).add_rows(transport.taken())
    assert matrix.dense().tolist() == [[0, 0, 0], [0.25, 0, 0.5], [0, 0, 0]]
