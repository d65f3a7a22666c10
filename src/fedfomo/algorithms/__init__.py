"""The methods, by name."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedfomo.algorithms.apfl import Apfl
from fedfomo.algorithms.apfl_logits import ApflLogits
from fedfomo.algorithms.apple import Apple
from fedfomo.algorithms.cfl import Cfl
from fedfomo.algorithms.ditto import Ditto
from fedfomo.algorithms.dpfl import Dpfl
from fedfomo.algorithms.fedala import FedAla
from fedfomo.algorithms.fedamp import FedAmp
from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.fedavg_finetuned import FedAvgFineTuned
from fedfomo.algorithms.fedavg_shared import FedAvgShared
from fedfomo.algorithms.fedavg_tuned_on_validation import FedAvgTunedOnValidation
from fedfomo.algorithms.fedavgm import FedAvgM
from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.algorithms.fedfomo_averages import FedFomoAverages
from fedfomo.algorithms.fedprox import FedProx
from fedfomo.algorithms.fedrep import FedRep
from fedfomo.algorithms.fl_hc import FlHc
from fedfomo.algorithms.hypcluster import HypCluster
from fedfomo.algorithms.ifca import Ifca
from fedfomo.algorithms.l2gd import L2gd
from fedfomo.algorithms.lg_fedavg import LgFedAvg
from fedfomo.algorithms.local import Local
from fedfomo.algorithms.local_all import LocalAll
from fedfomo.algorithms.mapper import Mapper
from fedfomo.algorithms.mocha import Mocha
from fedfomo.algorithms.mocha_linear import MochaLinear
from fedfomo.algorithms.mocha_repository import MochaRepository
from fedfomo.algorithms.oracle import Oracle
from fedfomo.algorithms.per_fedavg import PerFedAvg
from fedfomo.algorithms.pfedgraph import PFedGraph
from fedfomo.algorithms.pfedme import PFedMe
from fedfomo.algorithms.private_mixture import PrivateMixture
from fedfomo.core.round import AnyAlgorithm
from fedfomo.errors import InputError, unknown

ALGORITHMS: dict[str, type[AnyAlgorithm]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedavg-finetuned": FedAvgFineTuned,
    "fedfomo": FedFomo,
    "fedfomo-averages": FedFomoAverages,
    "local-all": LocalAll,
    "oracle": Oracle,
    "fedavg-shared": FedAvgShared,
    "fedavg-tuned-on-validation": FedAvgTunedOnValidation,
    "fedavgm": FedAvgM,
    "fedprox": FedProx,
    "lg-fedavg": LgFedAvg,
    "fedrep": FedRep,
    "ditto": Ditto,
    "fedala": FedAla,
    "cfl": Cfl,
    "ifca": Ifca,
    "hypcluster": HypCluster,
    "mapper": Mapper,
    "fl-hc": FlHc,
    "fedamp": FedAmp,
    "pfedgraph": PFedGraph,
    "dpfl": Dpfl,
    "per-fedavg": PerFedAvg,
    "pfedme": PFedMe,
    "apfl": Apfl,
    "apfl-logits": ApflLogits,
    "l2gd": L2gd,
    "mocha": Mocha,
    "mocha-linear": MochaLinear,
    "mocha-repository": MochaRepository,
    "private-mixture": PrivateMixture,
    "apple": Apple,
}

READ_RECORDS = ("fedavg-shared", "mocha-linear")
"""Methods that look at single records themselves, past any noise: with privacy, they cannot run."""
JUDGE_BY_TRAINING = ("ifca", "hypcluster", "fedala")
"""Methods that judge models by training records: with privacy, they can run if judgement is noisy."""


def make_algorithm(name: str, options: Mapping[str, Any] | None = None) -> AnyAlgorithm:
    """Build a method from its name and options; values may be strings as a command line gives them."""
    if name not in ALGORITHMS:
        raise unknown("method", name, ALGORITHMS)
    algorithm = ALGORITHMS[name]
    hints = get_type_hints(algorithm)
    fields = [field.name for field in dataclasses.fields(algorithm)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for option, value in (options or {}).items():
        if option not in fields:
            if not fields:
                raise InputError(f"method '{name}' has no options, but '{option}' was given")
            raise unknown("option", option, fields, f"of method '{name}'")
        values[option] = _read(f"option '{option}' of method '{name}'", hints[option], value)
    return algorithm(**values)


@dataclass(frozen=True)
class Option:
    """One option of a method, for whoever has to choose."""

    name: str
    default: Any
    help: str


@dataclass(frozen=True)
class Description:
    """A method in a few words."""

    summary: str
    sends: str  # what moves each way
    compute: str  # how much more than FedAvg it computes
    options: list[Option]


def describe(name: str) -> Description:
    """Describe a method for whoever has to choose."""
    if name not in ALGORITHMS:
        raise unknown("method", name, ALGORITHMS)
    algorithm = ALGORITHMS[name]
    help_of = _field_docstrings(algorithm)
    options = [Option(f.name, f.default, help_of.get(f.name, "")) for f in dataclasses.fields(algorithm)]  # type: ignore[arg-type]
    summary = (inspect.getdoc(algorithm) or "").splitlines()[0]
    return Description(summary, getattr(algorithm, "sends", ""), getattr(algorithm, "compute", ""), options)


def _field_docstrings(algorithm: type) -> dict[str, str]:
    """Read the texts below the fields of a dataclass, which Python itself forgets."""
    body = ast.parse(textwrap.dedent(inspect.getsource(algorithm))).body[0]
    texts: dict[str, str] = {}
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, text in pairwise(statements):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            texts[field.target.id] = str(ast.literal_eval(text.value))
    return texts


def _read(what: str, hint: Any, value: Any) -> Any:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise InputError(f"{what} must be one of {', '.join(get_args(hint))}, not '{value}'")
        return value
    words, pattern = _NUMBERS[hint]
    if not re.fullmatch(pattern, str(value).lower()):
        raise InputError(f"{what} must be {words}, not '{value}'")
    return str(value).lower() == "true" if hint is bool else hint(value)


_NUMBERS: dict[type, tuple[str, str]] = {
    bool: ("true or false", r"true|false"),
    int: ("a whole number", r"[+-]?\d+"),
    float: ("a number", r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"),
}
