"""Configurations as people write them: right, nearly right, and wrong in every way that a file or a flag allows."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedfomo.algorithms import ALGORITHMS
from fedfomo.core.networks import NETWORKS
from fedfomo.datasets.config import REPRESENTATIONS, SCENARIOS
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config import RunConfig

WHOLE = (0, 1, 2, 3, 5, 20, -1, 1000, 2**31, 2**63, -(2**70))
FRACTIONS = (0.0, 0.1, 0.5, 1.0, 1, 0, 2.5, -0.1, 1e-12, 1e300, math.nan, math.inf, -math.inf)
TEXTS = ("", "x", "digits", "../../../etc/passwd", "$(touch x)", "cpu", "meta", "cuda:99", "a\0b", "ü" * 50, "~", "-1")
OTHERS = (None, True, False, "3", "0.5", [], [1], ["x"], {}, {"a": 1}, 3, 0.5, "nan")
NEAR_MISSES = (
    "epoch",
    "lr",
    "learning-rate",
    "Rounds",
    "num_downloads",
    "setting",
    "scenario.clients",
    "training",
    "x",
)

# Of each configuration that is to run, so that it is over soon; what was asked for otherwise still has to be right.
SHORT = {"rounds": 1, "epochs": 1, "workers": 0, "data_fraction": 0.1, "executor": "processes"}


@dataclass(frozen=True)
class Written:
    """A configuration, and the words of which a refusal has to say one."""

    table: Mapping[str, Any]
    names: tuple[str, ...]

    @property
    def is_short(self) -> bool:
        """Whether it may be tried: it asks for little work, on this machine."""
        sizes = re.findall(r"\d+", str({key: value for key, value in self.table.items() if key != "seed"}))
        is_small = all(int(size) <= 100 for size in sizes)
        return is_small and not {"executor", "workers", "epochs", "rounds"} & {*self.table}


def written(rng: random.Random) -> Written:
    """Write a configuration of a few keys."""
    table: dict[str, Any] = {"scenario": rng.choice(("iid", "dirichlet", "pathological", "latent")), "clients": 4}
    names: list[str] = []
    kinds = _fields(RunConfig)
    for _ in range(rng.randint(0, 3)):
        name = rng.choice([*kinds])
        table[name] = _any_value(name, kinds[name], rng)
        names.append("option" if name == "options" else name)
    method = table.get("method", rng.choice([*ALGORITHMS]))
    table["method"] = method
    if rng.random() < 0.6 and isinstance(method, str) and method in ALGORITHMS:
        names += _add_options(table, method, rng)
    if rng.random() < 0.1:
        privacy = _fields(Privacy)
        table["privacy"] = {
            key: _any_value(key, privacy[key], rng) for key in rng.sample([*privacy], rng.randint(1, 3))
        }
        names += ["privacy", *table["privacy"]]
    if rng.random() < 0.1:
        stranger = rng.choice(NEAR_MISSES)
        where = table["privacy"] if isinstance(table.get("privacy"), dict) and rng.random() < 0.5 else table
        where[stranger] = 1
        names.append(stranger)
    return Written(table, (*names, "method", "scenario", "clients"))


def _add_options(table: dict[str, Any], method: str, rng: random.Random) -> list[str]:
    hints = get_type_hints(ALGORITHMS[method])
    fields = [field.name for field in dataclasses.fields(ALGORITHMS[method])]  # type: ignore[arg-type]
    chosen = [rng.choice([*fields, "num_download"]) for _ in range(rng.randint(1, 2))]
    pairs = [(name, _any_value(name, hints.get(name, int), rng)) for name in chosen]
    if rng.random() < 0.3:  # as older versions have it
        table["options"] = [f"{name}={_plainly(value)}" for name, value in pairs]
    else:
        table[method] = dict(pairs)
    return ["option", *chosen]


def _any_value(name: str, hint: Any, rng: random.Random) -> Any:
    if rng.random() < 0.15:
        return rng.choice(OTHERS)
    kinds = {kind for kind in get_args(hint) if kind is not NoneType} if get_origin(hint) is not Literal else set[Any]()
    hint = next(iter(kinds)) if len(kinds) == 1 and NoneType in get_args(hint) else hint
    if get_origin(hint) is Literal:
        return rng.choice((*get_args(hint), "x"))
    if hint is bool:
        return rng.choice((True, False, 1))
    if hint is int:
        return rng.choice(WHOLE)
    if hint is float:
        return rng.choice(FRACTIONS)
    known = {"method": ALGORITHMS, "scenario": SCENARIOS, "representation": REPRESENTATIONS, "network": NETWORKS}
    if name in known:
        return rng.choice((*known[name], "auto", "", "fedfom"))
    if hint is Path or name in ("dataset", "device"):
        return rng.choice(TEXTS)
    return rng.choice((["x"], [], ["tensorboard"], ["a=b"], ["=1"], ["seed=1", "seed=2"], "x"))


def _fields(kind: type) -> dict[str, Any]:
    """Return every key of a configuration with its type; those of tables apart."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if hint is Privacy:
            continue
        found |= _fields(hint) if dataclasses.is_dataclass(hint) else {name: hint}  # type: ignore[arg-type]
    return found


def as_toml(table: Mapping[str, Any]) -> str:
    """Spell a configuration as TOML; tables come last, as they must."""
    tables = {key: value for key, value in table.items() if isinstance(value, dict) and key not in _fields(RunConfig)}
    plain = [f"{_key(key)} = {_spelt(value)}" for key, value in table.items() if key not in tables]
    for name, part in tables.items():
        plain += [f"[{_key(name)}]", *(f"{_key(key)} = {_spelt(value)}" for key, value in part.items())]
    return "\n".join(plain) + "\n"


def as_flags(table: Mapping[str, Any]) -> list[str]:
    """Spell a configuration as flags."""
    flags: list[str] = []
    for key, value in table.items():
        if isinstance(value, dict) and key not in _fields(RunConfig):
            flags += as_flags({f"{key}.{name}": item for name, item in value.items()})
            continue
        part, dot, name = key.replace("_", "-").rpartition(".")
        flag = f"--{part}{dot}{name}"
        if isinstance(value, bool) and (part not in ("", "privacy") or key in ("vectorise", "shuffle_targets")):
            flags.append(flag if value else f"--{part}{dot}no-{name}")
        elif isinstance(value, dict):
            flags += [flag, *(f"{name}={_plainly(item)}" for name, item in value.items())]
        elif isinstance(value, list):
            flags += [flag, *map(_plainly, value)]
        else:
            flags += [flag, _plainly(value)]
    return [flag.replace("\0", "?") for flag in flags]  # no shell can pass a zero byte


def _plainly(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _spelt(value: Any) -> str:
    if value is None:
        return "1979-05-27"  # TOML has no null; a date is as unexpected
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_spelt(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_spelt, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else str(value)
