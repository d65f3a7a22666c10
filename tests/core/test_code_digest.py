"""Functions of a user's own have the same words in every process, and other words once they do something else."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from fedfomo.core.code_digest import spelled
from fedfomo.core.user_code import load_user_module

NAMES = """
from fedfomo.core.code_digest import spelled
chosen = {"head", "body", "neck"}

def train(model, data, context):
    return [name for name in model if name in {"head.weight", "head.bias", "body"} or name in chosen]

print(spelled(train))
"""


def test_sets_have_the_same_words_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", NAMES],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in range(3)
    }
    assert len(found) == 1


def module_of(folder: Path, text: str) -> ModuleType:
    path = folder / "own.py"
    path.write_text(text)
    return load_user_module(path)


OWN = """
from dataclasses import dataclass
from torch.optim import SGD

class Console:
    def __init__(self):
        self.width = id(self)

@dataclass(frozen=True)
class Settings:
    momentum: float = 0.5

RATE, TABLE, SETTINGS, CONSOLE = 0.1, {"rates": [1, 2]}, Settings(), Console()

def helper(x):
    return x * 2

def optimizer(parameters):
    CONSOLE.width
    return SGD(parameters, helper(RATE), momentum=TABLE["rates"][0] + SETTINGS.momentum)
"""


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("RATE, TABLE", "RATE, TABLE", False),
        ("0.1", "0.2", True),
        ("[1, 2]", "[1, 3]", True),
        ("momentum: float = 0.5", "momentum: float = 0.6", True),
        ("x * 2", "x * 3", True),
        ("import SGD", "import Adam as SGD", True),
    ],
)
def test_what_a_function_reads_belongs_to_it(tmp_path: Path, old: str, new: str, differs: bool) -> None:
    before = spelled(module_of(tmp_path, OWN).optimizer)
    assert (spelled(module_of(tmp_path, OWN.replace(old, new)).optimizer) != before) == differs


def with_keyword(rate: float) -> Callable[..., float]:
    def made(parameters: Any, *, rate: float = rate) -> float:
        return rate

    return made


@dataclass(repr=False)
class Maker:
    rate: float

    def one(self, parameters: Any) -> float:
        return self.rate

    def other(self, parameters: Any) -> float:
        return -self.rate


def test_defaults_of_keywords_and_the_object_of_a_method_belong_to_a_function() -> None:
    assert spelled(with_keyword(1)) == spelled(with_keyword(1)) != spelled(with_keyword(2))
    assert spelled(Maker(1).one) == spelled(Maker(1).one) != spelled(Maker(2).one)
    assert spelled(Maker(1).one) != spelled(Maker(1).other)
    assert spelled(Maker(1).one).startswith("Maker(rate=1).one#")


def calls_itself(step: int) -> Callable[[int], int]:
    def down(number: int) -> int:
        return down(number - step) if number else 0

    return down


def test_what_refers_to_itself_is_spelled() -> None:
    assert spelled(calls_itself(1)) == spelled(calls_itself(1)) != spelled(calls_itself(2))
    ring: list[Any] = [1]
    ring.append(ring)
    assert spelled(ring) == "[1, <list>]"


def test_plain_values_are_spelled_as_python_does() -> None:
    for value in (1, 0.5, "a", None, (1,), [1, (2, "b")], {"a": [1.0], 2: None}, nn.Linear(2, 3), torch.ones(2)):
        assert spelled(value) == repr(value)
    assert spelled({"b", "a"}) == "set('a', 'b')"
    assert spelled([lambda: 1]).startswith("[<lambda>#")
