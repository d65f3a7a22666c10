"""A request, understood: what the method is told of it."""

import pytest

from fedfomo.algorithms import make_algorithm
from fedfomo.deployment.site_task import Task
from toy_problems import points_problem


@pytest.mark.parametrize(("kind", "is_final"), [("train", False), ("finish", True)])
def test_a_site_knows_which_update_is_the_last(kind: str, is_final: bool) -> None:
    problem, algorithm = points_problem(), make_algorithm("fedfomo-robust")
    header = {"kind": kind, "slot": 0, "round": 2, "seed": 0}
    start = problem.start(30)  # the server may end long before
    task = Task(header, algorithm, start, problem.model, problem.clients[0], None, None, problem.trainer, {})
    assert task.client().is_final == is_final
