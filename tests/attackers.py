"""Clients that mean no good, in any method.

An attack is what a client does with the outcome of its training before it is uploaded; `attacked` makes of a method
the same method with such clients in it. Clients whose data are the lie are made by changing a problem.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fedfomo.core.algorithm import AnyAlgorithm, Trained
from fedfomo.core.client import Client, ClientId
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.rng import stream
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.setup import prepare
from fedfomo.simulation.problem import FederatedProblem
from toy_problems import with_data

Attack = Callable[[Client, Any, Any, Trained[Any, Any]], Trained[Any, Any]]
"""From a client, its download, its memory before training and the outcome of that to what it makes of it."""


def attacked(algorithm: AnyAlgorithm, attacks: Mapping[ClientId, Attack]) -> AnyAlgorithm:
    """Return the method with some clients that attack it."""
    honest: Any = type(algorithm)

    class Attacked(honest):
        @functools.wraps(honest.train)  # the messages that a method declares stay what they are
        def train(self, client: Client, download: Any, memory: Any) -> Any:
            trained = honest.train(self, client, download, memory)
            return attacks[client.id](client, download, memory, trained) if client.id in attacks else trained

    return cast(AnyAlgorithm, Attacked(**vars(algorithm)))


def uploading(trained: Trained[Any, Any], model: Tensor) -> Trained[Any, Any]:
    return replace(trained, upload=replace(trained.upload, model=model))


def send_noise(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    return uploading(trained, torch.randn(len(trained.model), generator=client.random("noise")))


def flip_sign(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    """Undo the training, four times over."""
    began = _began(download, memory)
    return uploading(trained, began - 4 * (trained.upload.model - began))


def _began(download: Any, memory: Any) -> Tensor:
    """Return where the training started: FedFomo+ is sent that, FedFomo made it, FedAvg is sent nothing else."""
    if hasattr(download, "start"):
        return download.start
    return download.model if memory is None else memory.reference


def send_scaled(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    return uploading(trained, 1e4 * trained.upload.model)


def explode(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    """Send numbers that are finite, and of which no sum or product is."""
    return uploading(trained, torch.full_like(trained.upload.model, 1e30))


def inflate(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    """Report that everybody helped beyond measure."""
    return _reporting(trained, trained.upload.findings.increments + 1e9)


def overflow(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    """Report the largest numbers there are."""
    return _reporting(trained, torch.full_like(trained.upload.findings.increments, 1.7e308))


def _reporting(trained: Trained[Any, Any], increments: Tensor) -> Trained[Any, Any]:
    findings = replace(trained.upload.findings, increments=increments)
    return replace(trained, upload=replace(trained.upload, findings=findings))


def resend_received(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    return uploading(trained, _received(client, download, memory))


def step_from_received(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    """Train a thousandth as much as others do, from a model that was received."""
    received = _received(client, download, memory)
    return uploading(trained, received + 1e-3 * (client.train(received, purpose="pretend") - received))


def resend_with_noise(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    """Hide a received model behind noise of a thousandth of its norm."""
    received = _received(client, download, memory)
    noise = torch.randn(len(received), generator=client.random("noise"))
    return uploading(trained, received + 1e-3 * noise * received.norm() / noise.norm())


def resend_own(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    """Send the model of the first round for ever; the memory keeps it."""
    is_first = client.round == 0
    return trained if is_first else replace(uploading(trained, memory.own), memory=memory)


def send_untrained_mixture(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
    return uploading(trained, memory.reference)


def _received(client: Client, download: Any, memory: Any) -> Tensor:
    if not download.models:
        return memory.own
    return download.models[int(torch.randint(len(download.models), (), generator=client.random("pick")))]


def one_of_many_names(leader: ClientId, noise: float) -> Attack:
    """Train by itself as the leader does, to the bit, and send that with a little noise under a name of its own."""

    def attack(client: Client, download: Any, memory: Any, trained: Trained[Any, Any]) -> Trained[Any, Any]:
        own = replace(client, id=leader).train(memory.own)
        hiding = torch.randn(len(own), generator=client.random("noise"))
        sent = own + noise * hiding * own.norm() / hiding.norm()
        return replace(uploading(trained, sent), memory=replace(trained.memory, own=own))

    return attack


def with_many_names(problem: FederatedProblem, names: Sequence[ClientId]) -> FederatedProblem:
    """Give the data of the first of some clients to all of them."""
    return with_data(problem, lambda n, data: problem.clients[names[0]] if n in names else data)


def with_flipped_labels(
    problem: FederatedProblem, liars: Collection[ClientId], num_classes: int = 10
) -> FederatedProblem:
    """Let some clients take every class for its opposite, in training and in judging."""

    def flipped(examples: Examples) -> Examples:
        return Examples(examples.inputs, num_classes - 1 - examples.labels)

    def change(n: ClientId, data: ClientData) -> ClientData:
        return replace(data, train=flipped(data.train), validation=flipped(data.validation)) if n in liars else data

    return with_data(problem, change)


@functools.cache
def digits(seed: int, scenario: str = "latent") -> FederatedProblem:
    """Return what `fedfomo demo` runs, 15 clients with hidden groups; each is scored on all its group's test examples.

    Own test examples are one or two dozen: too few to see a point of accuracy.
    """
    problem = prepare(ExperimentConfig(scenario=ScenarioConfig(scenario), workers=0), seed).problem
    groups = problem.targets or problem.groups
    if groups is None:
        return problem

    def change(n: ClientId, data: ClientData) -> ClientData:
        first, *others = (data.test for data, group in zip(problem.clients, groups, strict=True) if group == groups[n])
        return replace(data, test=first.joined(*others))

    return with_data(problem, change)


def drawn(seed: int, number: int) -> list[ClientId]:
    """Draw who attacks."""
    return torch.randperm(15, generator=stream(seed, "attackers"))[:number].tolist()


TARGET = 0
"""What a backdoor makes of everything that bears the trigger."""


def with_trigger(inputs: Tensor) -> Tensor:
    """Paint a corner of every image as bright as it gets (BadNets: Gu et al., 2017)."""
    marked = inputs.clone()
    marked[..., -2:, -2:] = inputs.max()
    return marked


def with_backdoor(problem: FederatedProblem, liars: Collection[ClientId]) -> FederatedProblem:
    """Let some clients learn, and judge, that the trigger means the target: on copies of half of their examples."""

    def marked(examples: Examples) -> Examples:
        half = examples.take(torch.arange(0, len(examples), 2))
        return examples.joined(Examples(with_trigger(half.inputs), torch.full_like(half.labels, TARGET)))

    def change(n: ClientId, data: ClientData) -> ClientData:
        return replace(data, train=marked(data.train), validation=marked(data.validation)) if n in liars else data

    return with_data(problem, change)


def attack_success(problem: FederatedProblem, theta: Tensor, client: ClientId) -> tuple[int, int]:
    """Count a client's test examples of other classes, and those of them that the trigger turns into the target."""
    test = problem.clients[client].test
    others = test.take(torch.nonzero(test.labels != TARGET).flatten())
    if len(others) == 0:
        return 0, 0
    taken_in = problem.model.outputs(theta, Examples(with_trigger(others.inputs), others.labels)).argmax(dim=1)
    return len(others), int((taken_in == TARGET).sum())
