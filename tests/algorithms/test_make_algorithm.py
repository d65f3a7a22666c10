"""Methods by name, with options as a command line or a file gives them."""

import dataclasses

import pytest

from fedfomo.algorithms import ALGORITHMS, describe, make_algorithm, register
from fedfomo.algorithms.fedavg_finetuned import FedAvgFineTuned
from fedfomo.algorithms.fedfomo import FedFomo, FedFomoAsCoded
from fedfomo.core.algorithm import Messages, messages_of
from fedfomo.errors import InputError


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_name_makes_its_class_with_its_own_defaults(name: str) -> None:
    algorithm = make_algorithm(name)
    assert type(algorithm) is ALGORITHMS[name]
    assert algorithm == ALGORITHMS[name]()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_is_a_frozen_dataclass_that_says_what_it_sends(name: str) -> None:
    algorithm = make_algorithm(name)
    assert dataclasses.is_dataclass(algorithm)
    assert isinstance(messages_of(algorithm), Messages)
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.num_downloads = 3  # type: ignore[attr-defined]


MODELS = ("model", "own", "core", "body", "coordinates", "trained")
WORDS = {
    "num_examples": "number of examples",
    "findings": "weights and shares",
    "cluster": "which of those was chosen",
    "collaborators": "choice of collaborators",
    "share": "share of every client's training data",
    "num_received": "shares received",
    "sum": "weighted mean of the examples",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_has_a_word_for_everything_that_it_uploads(name: str) -> None:
    upload = messages_of(make_algorithm(name)).upload
    if upload is type(None):
        assert describe(name).sends == "nothing"
        return
    for field in dataclasses.fields(upload):
        assert WORDS.get(field.name, "model") in describe(name).sends
        assert field.name in (*MODELS, *WORDS)


def test_words_are_read_as_what_the_option_is() -> None:
    options = {"num_downloads": "4", "epsilon": "1e-1", "norm": "l1", "affinity_update": "normalised"}
    assert make_algorithm("fedfomo-as-coded", options) == FedFomoAsCoded(
        num_downloads=4, epsilon=0.1, norm="l1", affinity_update="normalised"
    )
    assert make_algorithm("fedavg-finetuned", {"gated": "False"}) == FedAvgFineTuned(gated=False)


def test_values_are_taken_as_they_are() -> None:
    made = make_algorithm("fedfomo", {"num_downloads": 9, "epsilon": 0, "epsilon_decay": 1e-05})
    assert made == FedFomo(num_downloads=9, epsilon=0.0, epsilon_decay=1e-05)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("fedfumo", {}, "unknown method 'fedfumo': did you mean 'fedfomo'"),
        ("xyz", {}, "unknown method 'xyz': known: apfl, "),
        ("fedfomo", {"num_download": 3}, "option 'num_download' of method 'fedfomo': did you mean 'num_downloads'"),
        ("local-all", {"epochs": 3}, "method 'local-all' has no options, but 'epochs' was given"),
        ("fedfomo", {"num_downloads": "many"}, "option 'num_downloads' of method 'fedfomo' must be a whole number"),
        ("fedfomo", {"num_downloads": 2.5}, "must be a whole number, not '2.5'"),
        ("fedfomo", {"num_downloads": True}, "must be a whole number, not 'True'"),
        ("fedfomo", {"epsilon": "nan"}, "must be a number, not 'nan'"),
        ("fedfomo", {"epsilon": float("inf")}, "must be a number, not 'inf'"),
        ("fedfomo", {"epsilon": "-0.1"}, "'epsilon' of method 'fedfomo' must be between 0 and 1"),
        (
            "fedfomo-as-coded",
            {"norm": "l3"},
            "option 'norm' of method 'fedfomo-as-coded' must be one of l2, l1, not 'l3'",
        ),
        ("fedavg-finetuned", {"gated": "yes"}, "must be true or false, not 'yes'"),
    ],
)
def test_what_cannot_be_is_refused_in_words(name: str, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make_algorithm(name, options)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_is_described(name: str) -> None:
    assert all(option.help for option in describe(name).options)


def test_options_are_checked_on_direct_construction_too() -> None:
    with pytest.raises(InputError, match="option 'num_downloads' of method 'fedfomo' must be at least 1, not 0"):
        FedFomo(num_downloads=0)
    with pytest.raises(InputError, match="must be a whole number, not '4'"):
        FedFomo(num_downloads="4")  # type: ignore[arg-type]  # text is read from commands and files only


def test_registering_refuses_a_name_twice_and_a_class_that_is_no_dataclass() -> None:
    with pytest.raises(ValueError, match="there is a method 'fedfomo' already"):
        register("fedfomo")(FedFomo)
    with pytest.raises(TypeError, match="must be decorated with @dataclass"):
        register("new")(type("New", (FedFomo,), {}))


def test_the_authors_code_counts_the_own_model_among_its_five() -> None:
    coded = FedFomoAsCoded(num_downloads=4, norm="l1", affinity_update="normalised", num_averages=5)
    assert make_algorithm("fedfomo-as-coded") == coded
    assert make_algorithm("fedfomo") == FedFomo(num_downloads=5)
