"""A method of a user's own, in a file outside the package."""

import json
from pathlib import Path

import pytest
import torch

from fedfomo.algorithms import ALGORITHMS, describe, make_algorithm
from fedfomo.cli.main import main
from fedfomo.core.algorithm import Personalised
from fedfomo.deployment.allowed_methods import make_method
from fedfomo.errors import InputError
from fedfomo.testing import LAWS, Law, check_algorithm

FILE = Path(__file__).parents[1] / "examples" / "my_method.py"
METHOD = f"{FILE}:FadingProx"


def test_it_takes_no_more_than_forty_lines() -> None:
    assert len(FILE.read_text().splitlines()) <= 40


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_it_obeys_every_law(law: Law) -> None:
    law(make_algorithm(METHOD))


def test_the_laws_hold_in_a_process_of_two_threads_as_authors_have_it() -> None:
    torch.set_num_threads(2)
    try:
        check_algorithm(METHOD)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_it_has_options_that_are_read_checked_and_described() -> None:
    made = make_algorithm(METHOD, {"mu": "0.5"})
    assert vars(made) == {"mu": 0.5}
    assert make_algorithm(made) is made
    assert make_algorithm(type(made), {"mu": 0.5}) == made == make_algorithm(METHOD, {"mu": 0.5})
    assert [option.help for option in describe(METHOD).options] == ["Weight μ of the proximal term in the first round."]
    with pytest.raises(InputError, match=r"'mu' of method .* must be at least 0, not -1"):
        make_algorithm(METHOD, {"mu": -1})
    with pytest.raises(InputError, match="set where it is made"):
        make_algorithm(made, {"mu": 0.1})


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (f"{FILE}:Missing", "defines no class Missing"),
        (f"{FILE}:dataclass", "is no dataclass that inherits"),
        ("nowhere.py:Method", "there is no file"),
        ("README.md:Method", "unknown method"),
    ],
)
def test_what_is_no_method_is_refused_in_words(name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make_algorithm(name)


def test_no_server_makes_a_site_run_a_file() -> None:
    with pytest.raises(InputError, match="comes from a file, and no real federation runs it"):
        make_method(METHOD, {})


def test_a_broken_law_is_named() -> None:
    class Forgetful(ALGORITHMS["fedavg"]):  # type: ignore[misc]
        def personalise(self, client: object, download: object, memory: None) -> Personalised[None]:
            return Personalised(client.start.initial, None)  # type: ignore[attr-defined]

    with pytest.raises(AssertionError) as error:
        check_algorithm(Forgetful)
    assert any("the law that is broken" in note for note in error.value.__notes__)


def test_it_runs_beside_others_over_seeds(tmp_path: Path) -> None:
    small = ("--clients", "4", "--distributions", "2", "--rounds", "2", "--data-fraction", "0.2", "--workers", "0")
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "compare",
                "--methods",
                METHOD,
                "fedavg",
                "fedprox",
                "--seeds",
                "0",
                "1",
                "--out",
                str(tmp_path / "runs"),
                *small,
            ]
        )
    assert ended.value.code in (0, None)
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    assert len(results) == 8  # local training is always among them
    assert sum(result["method"].endswith("FadingProx") for result in results) == 2
