"""What the authors' public code really does where that is not the paper, each a switch: `protocol = authors`.

NVlabs/FedFomo, commit fe04f66. With 100 clients, a tenth of them in a round:

- same_ten: the generator is seeded anew in every round before the draw: the same ten clients take part in all rounds,
  and they alone are scored. The other ninety enter no number, so here the ten are the whole federation.
- classes_twice: a client's two shards may be of one class (7 to 10 clients in 100 have one class only).
- first_epoch: FedFomo's clients train one epoch before the first round, at the first round's step size.
- varied_validation: validation images are shifted and mirrored, anew for each model that is judged.
- black_borders: images are shifted before they are scaled, so that what comes in is black and not the mean colour;
  they are scaled by the constants of ImageNet.
- keep_diverged: a model that is no number is kept. Local Training goes on with it and FedAvg averages it in; neither
  ever leaves it again, and the largest of outputs that are no numbers is class 0.
- as_coded: FedFomo with the L1 norm, normalised affinity, averages as candidates, and n that counts the own model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfomo.algorithms import make_algorithm
from fedfomo.algorithms.fedfomo.as_coded import FedFomoAsCoded
from fedfomo.algorithms.fedfomo.state import Download, Memory
from fedfomo.core.algorithm import AnyAlgorithm, Personalised
from fedfomo.core.client import Client, ClientId
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.rng import numpy_stream
from fedfomo.core.round import sample_clients
from fedfomo.datasets.partitions import ClientIndices, Indices
from fedfomo.datasets.standardise import Scale
from fedfomo.errors import require, unknown
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.setup import Prepared, prepare

IMAGENET = Scale(
    torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
)


@dataclass(frozen=True)
class Protocol:
    """Which of the code's ways a run follows; none: the library's own."""

    same_ten: bool = False
    classes_twice: bool = False
    first_epoch: bool = False
    varied_validation: bool = False
    black_borders: bool = False
    keep_diverged: bool = False
    as_coded: bool = False

    @staticmethod
    def of(names: Sequence[str]) -> Protocol:
        """Return the protocol with these switches on; "authors" is all of them."""
        known = [field.name for field in fields(Protocol)]
        for name in names:
            if name not in (*known, "authors"):
                raise unknown("switch", name, [*known, "authors"])
        return Protocol(**{name: name in names or "authors" in names for name in known})

    @property
    def name(self) -> str:
        """A name for files."""
        on = [field.name for field in fields(self) if getattr(self, field.name)]
        if len(on) == len(fields(self)):
            return "authors"
        return "+".join(on).replace("_", "-") or "ours"


@dataclass(frozen=True)
class AuthorsSgd(Sgd):
    """SGD with a short round before the first one, and images that are shifted before they are scaled."""

    first_epoch: bool = False
    black: tuple[float, ...] = ()  # what black is on the scale of the inputs, by channel; none: borders are 0

    def learning_rate_in(self, round: int, model: Model | None = None) -> float:
        """Return the step size; the short round does not count."""
        return super().learning_rate_in(max(0, round - 1) if self.first_epoch else round, model)

    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[Examples]:
        """Vary images around black where that is asked for."""
        if not (self.augment and self.black):
            yield from super().batches(examples, epochs, rng)
            return
        for _ in range(epochs if len(examples) else 0):
            for batch in examples.shuffled_batches(self.batch_size, rng):
                yield varied(batch, self.black, rng)

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Train one epoch in the short round."""
        is_short = self.first_epoch and task.round == 0
        return super().train(model, replace(task, epochs=1) if is_short else task)


def varied(examples: Examples, black: Sequence[float], rng: torch.Generator) -> Examples:
    """Shift and mirror images; what comes in from outside is black."""
    border = torch.tensor(black).view(1, -1, 1, 1)
    moved = Examples(examples.inputs - border, examples.labels).augmented(rng)
    return Examples(moved.inputs + border, examples.labels)


@dataclass(frozen=True)
class VariedEvaluator:
    """Shows every model other variations of the validation images."""

    rng: torch.Generator
    black: tuple[float, ...]

    def losses(self, model: Model, thetas: Sequence[Tensor], examples: Examples) -> Tensor:
        """Return each θ's mean loss on images that are varied anew."""
        border = self.black or (0.0,) * examples.inputs.shape[1]
        values = [model.loss(theta, varied(examples, border, self.rng)) for theta in thetas]
        return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class VariedFedFomo(FedFomoAsCoded):
    """FedFomo whose clients judge models on images that are varied anew for each."""

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Judge through variations."""
        black = client.trainer.black if isinstance(client.trainer, AuthorsSgd) else ()
        evaluator = VariedEvaluator(client.random("vary validation"), black)
        return super().personalise(replace(client, evaluator=evaluator), download, memory)


def make_method(method: str, protocol: Protocol, num_averages: int = 5) -> AnyAlgorithm:
    """Return Local Training, FedAvg or FedFomo (n = 5) as a protocol has it."""
    if method != "fedfomo":
        return make_algorithm(method)
    as_paper: dict[str, Any] = {"norm": "l2", "affinity_update": "raw", "num_averages": 0, "num_downloads": 5}
    as_coded: dict[str, Any] = {"num_averages": num_averages, "num_downloads": 4}
    options = as_coded if protocol.as_coded else as_paper
    return (VariedFedFomo if protocol.varied_validation else FedFomoAsCoded)(**options)


def prepare_protocol(setting: ExperimentConfig, seed: int, method: str, protocol: Protocol) -> Prepared:
    """Prepare a run as a protocol has it."""
    if protocol.black_borders:
        require(setting.training.augment, "black_borders is about images that are shifted: choose cifar10 or cifar100")
        setting = replace(setting, standardise=False)
    prepared = prepare(setting, seed)
    clients: list[ClientData] = list(prepared.problem.clients)
    if protocol.classes_twice:
        require(setting.scenario.scenario == "pathological", "classes_twice is about the pathological split")
        clients = _with_repeated_classes(prepared, setting, seed)
    if protocol.black_borders:
        clients = [IMAGENET.applied_to(client) for client in clients]
    simulation = prepared.simulation
    if protocol.same_ten:
        ten = sample_clients(len(clients), setting.participation, seed, 0)
        clients = [clients[number] for number in ten]
        simulation = replace(simulation, participation=1.0)
    begins_short = protocol.first_epoch and method == "fedfomo"
    if begins_short:
        simulation = replace(simulation, rounds=simulation.rounds + 1)
    black = tuple((-IMAGENET.mean / IMAGENET.deviation).flatten().tolist()) if protocol.black_borders else ()
    trainer: Sgd = setting.training
    if begins_short or black:
        trainer = AuthorsSgd(**vars(setting.training), first_epoch=begins_short, black=black)
    is_same = len(clients) == len(prepared.problem.clients)
    groups = prepared.problem.groups if is_same else None
    targets = prepared.problem.targets if is_same else None
    problem = replace(prepared.problem, clients=tuple(clients), trainer=trainer, groups=groups, targets=targets)
    return replace(prepared, problem=problem, simulation=simulation)


def _with_repeated_classes(prepared: Prepared, setting: ExperimentConfig, seed: int) -> list[ClientData]:
    data, scenario = prepared.data, setting.scenario
    labels = [part.labels.numpy().astype(np.int64) for part in (data.train, data.test)]
    per_client = scenario.classes_per_client or round(data.num_classes / 5)
    dealt = shards(labels[0], labels[1], scenario.clients, per_client, seed, scenario.validation_fraction)
    parts = [(data.train.take(torch.from_numpy(one.train)), one) for one in dealt]
    taken = [
        ClientData(train, data.train.take(torch.from_numpy(one.validation)), data.test.take(torch.from_numpy(one.test)))
        for train, one in parts
    ]
    return [prepared.scale.applied_to(client) for client in taken] if prepared.scale else taken


def shards(
    train_labels: Indices, test_labels: Indices, num_clients: int, per_client: int, seed: int, validation: float
) -> list[ClientIndices]:
    """Cut every class into equal shards, and deal these at random: a client's may be of one class."""
    classes = np.unique(train_labels)
    number, left = divmod(num_clients * per_client, len(classes))
    require(left == 0, f"{num_clients * per_client} shards cannot be the same number of each of {len(classes)} classes")
    pieces: list[list[Indices]] = []
    for part, labels in (("train", train_labels), ("test", test_labels)):
        rng = numpy_stream(seed, "authors' shards", part)
        cut = [np.array_split(rng.permutation(np.flatnonzero(labels == label)), number) for label in classes]
        pieces.append([shard for shards_of_class in cut for shard in shards_of_class])
    owners = numpy_stream(seed, "authors' shards", "owners").permutation(num_clients * per_client)
    dealt: list[ClientIndices] = []
    for client in range(num_clients):
        held = owners[client * per_client : (client + 1) * per_client]
        train, test = (np.concatenate([part[shard] for shard in held]) for part in pieces)
        order = numpy_stream(seed, "authors' shards", "validation", client).permutation(train)
        cut = round(validation * len(train))
        dealt.append(ClientIndices(np.sort(order[cut:]), np.sort(order[:cut]), np.sort(test)))
    return dealt


def with_diverged_kept(
    accuracies: Mapping[ClientId, float], diverged: Sequence[ClientId], class_0: Mapping[ClientId, float], method: str
) -> dict[ClientId, float]:
    """Return the accuracies that a run would have ended with if models that are no numbers had been kept.

    Nothing computed from what is no number becomes a number again. So a client of Local Training that ever diverged
    ends at the share of class 0 in its test data; with FedAvg everybody does, once anybody has diverged. FedFomo's
    public code stops with an error instead, so no run of it that has a result ever diverged.
    """
    if method == "local":
        return {client: class_0[client] if client in diverged else value for client, value in accuracies.items()}
    if method == "fedavg" and diverged:
        return {client: class_0[client] for client in accuracies}
    require(not diverged or method != "fedfomo", "a FedFomo run diverged: the authors' code would have stopped there")
    return dict(accuracies)


def share_of_class_0(clients: Sequence[ClientData]) -> dict[ClientId, float]:
    """Return the share of class 0 in each client's test data."""
    return {number: float((client.test.labels == 0).double().mean()) for number, client in enumerate(clients)}
