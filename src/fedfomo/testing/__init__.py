"""The laws that every method obeys, for whoever writes one.

    from fedfomo.testing import check_algorithm

    check_algorithm(MyMethod)

Each law is a function of a method that raises `AssertionError` where the method breaks it. With pytest, one test a law:

    @pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
    def test_law(law):
        law(MyMethod())

They run in a small federation of six clients that classify points in the plane (`points_problem`), by the
simulator and by a plain loop (`run_rounds`).
"""

from fedfomo.testing.laws import LAWS, Law, check_algorithm
from fedfomo.testing.toy_federation import InProcess, points_problem, run_rounds

__all__ = ["LAWS", "InProcess", "Law", "check_algorithm", "points_problem", "run_rounds"]
