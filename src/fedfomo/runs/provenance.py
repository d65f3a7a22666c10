"""What a run says of the machine, the libraries and the data that it was computed with."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfomo.algorithms.registry import file_of
from fedfomo.core.data import ClientData
from fedfomo.core.determinism import THREADS, instructions, processor
from fedfomo.core.device import bfloat16_instructions
from fedfomo.core.model import Model
from fedfomo.datasets.heterogeneity import constant_accuracy
from fedfomo.datasets.partitions import Partition
from fedfomo.errors import require
from fedfomo.io import read_json, to_json, write_atomically
from fedfomo.runs.config import ExperimentConfig, label_of
from fedfomo.runs.setup import Prepared, network_name

# What tells the clients of one run from those of another; older runs say nothing of "split".
CLIENTS = ("data", "examples", "groups", "targets", "split")


def write_environment(folder: Path, environment: Mapping[str, Any]) -> None:
    """Write down the versions, the kind of processor, the data and the network of a run."""
    write_atomically(folder / "environment.json", to_json(environment, indent=1).encode())


def read_environment(folder: Path) -> dict[str, Any]:
    """Read what a run has written down of what it is computed with."""
    path = folder / "environment.json"
    require(path.exists(), f"{folder} has no environment.json: start the run again")
    return read_json(path, "start the run again")


def clients_of(prepared: Prepared) -> dict[str, Any]:
    """Describe on whose data a run computes: the set, and who holds which part of it."""
    clients, partition = prepared.scenario.clients, prepared.scenario.partition
    return {
        "data": {"name": prepared.data.name, "sha256": prepared.data.fingerprint},
        "examples": example_counts(clients),
        "groups": None if partition.groups is None else list(partition.groups),
        "targets": list(partition.targets),
        "split": _split_digest(partition),
    }


def example_counts(clients: Sequence[ClientData]) -> list[dict[str, int]]:
    """Count the examples in every client's parts."""
    return [{"train": len(c.train), "validation": len(c.validation), "test": len(c.test)} for c in clients]


def same_clients(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two runs had the same clients, as far as both say."""
    return all(one[part] == other[part] for part in CLIENTS if part in one and part in other)


def check_clients(folder: Path, environment: Mapping[str, Any]) -> None:
    """Refuse to go on with a run whose clients would be others from now on."""
    problem = f"{folder} was begun with other clients than '{environment['data']['name']}' gives now"
    cause = "the data, or the latent groups found in them, are not the same"
    is_same = same_clients(read_environment(folder), environment)
    require(is_same, f"{problem}: {cause}; go on with those that it was begun with, or start a new run")


def method_file(method: str) -> dict[str, str]:
    """Return the digest of the file that a method is read from, if it is one of a user's own."""
    file = file_of(method)
    if file is None:
        return {}
    require(file.is_file(), f"there is no file {file}, from which the method {label_of(method)} comes")
    return {"method_file": hashlib.sha256(file.read_bytes()).hexdigest()}


def check_method_file(folder: Path, method: str) -> None:
    """Refuse to go on with a run by another method than it was begun with, under the same name."""
    begun = read_environment(folder).get("method_file")
    is_same = begun in (None, *method_file(method).values())
    changed = f"{file_of(method)} has changed since {folder} was begun"
    require(is_same, f"{changed}: undo the change, or start a new run")


def check_machine(folder: Path, tell: Callable[[str], None]) -> None:
    """Refuse to go on where sums are taken in another order: their last bits would be others; tell of other code."""
    begun = read_environment(folder)
    for name, here in (("instructions", instructions()), ("bf16", bfloat16_instructions())):
        then = begun.get(name, here)
        problem = f"{folder} was begun on a processor that computes with {then}, and here it would be {here}"
        require(then == here, f"{problem}: go on with it where it was begun, or start a new run")
    if begun.get("source", source_digest()) != source_digest():
        tell(
            f"{folder} was begun with other code of fedfomo: what comes of it may be neither that code's nor this one's"
        )


def precision_of(model: Model) -> dict[str, str | None]:
    """Describe in what precision a network computes, and by which instructions of the processor."""
    if model.precision == "float32" or model.device.type != "cpu":
        return {"precision": model.precision}
    return {"precision": model.precision, "bf16": bfloat16_instructions()}


@cache
def source_digest() -> str:
    """Hash the code of this library, which may change while its version stays."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """Describe the code and the machine that compute a run."""
    libraries = ("fedfomo", "torch", "numpy", "scikit-learn", "safetensors", "opacus")
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in libraries},
        "source": source_digest(),
        "threads": THREADS,
        "processor": processor(),
        "instructions": instructions(),
    }


def environment_of(prepared: Prepared, setting: ExperimentConfig) -> dict[str, Any]:
    """Describe what a run on a named data set is computed with."""
    shape = tuple(prepared.data.train.inputs.shape[1:])
    scenario = prepared.scenario
    return {
        **machine(),
        **clients_of(prepared),
        "network": {"name": network_name(setting, shape), "shape": shape, "classes": prepared.data.num_classes},
        "scale": prepared.scale and prepared.scale.described(),
        "parameters": prepared.problem.model.layout.num_trainable,
        "label_distance": {"l1": scenario.emd_l1, "official": scenario.emd_official},
        "constant": [
            _constant_accuracy(client, target == number)
            for number, (client, target) in enumerate(zip(scenario.clients, scenario.partition.targets, strict=True))
        ],
        "warnings": scenario.warnings,
    }


def label_counts(clients: Sequence[ClientData]) -> tuple[list[list[int]], list[list[int]]] | None:
    """Count every client's training and test labels; None where labels are not classes."""
    known = [(data.train.known_labels, data.test.known_labels) for data in clients]
    parts = [labels for own in known for labels in own if not isinstance(labels, Tensor) or len(labels)]
    if any(not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point() for labels in parts):
        return None
    number = 1 + max((int(labels.max()) for labels in parts), default=-1)
    if not 0 < number <= 100 or min(int(labels.min()) for labels in parts) < 0:
        return None

    def counts(labels: Tensor) -> list[int]:
        return torch.bincount(labels.long(), minlength=number).tolist()

    return [counts(train) for train, _ in known], [counts(test) for _, test in known]


def _split_digest(partition: Partition) -> str:
    digest = hashlib.sha256()
    for client in partition.clients:
        for indices in (client.train, client.validation, client.test):
            digest.update(f"{len(indices)}:".encode() + indices.astype("<i8").tobytes())
    return digest.hexdigest()


def _constant_accuracy(data: ClientData, has_own_target: bool) -> float | None:
    """Return the accuracy of always answering with a client's most frequent label; None: it has no data.

    Labels are counted in its training data, and if it aims at foreign data, in its validation data, which are like it.
    """
    known = data.train if has_own_target else data.validation
    return constant_accuracy(known.labels.numpy(), data.test.labels.numpy())
