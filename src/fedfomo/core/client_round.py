"""One client's round: federated update, score, local training, score. Simulator, site and tests share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import BudgetError, Client, FederationInfo
from fedfomo.core.data import can_contribute
from fedfomo.core.model import Score

Scorer = Callable[[Tensor], Score | None]
"""Scores a model on the client's test examples, or returns None where no score is wanted."""


@dataclass(frozen=True)
class ClientOutcome:
    """What one round left of a client, before anything is stored or sent."""

    memory: Any
    personalised: Tensor | None = None  # the model after the federated update; None: the budget did not suffice
    kept_values: Tensor | None = None  # what the client kept for itself then
    trained: Tensor | None = None  # the model after local training; None if the client did not train, or diverged
    upload: Any = None
    has_upload: bool = False  # whether the upload is sent to the server: that of some methods is None
    score_after_update: Score | None = None
    score_after_training: Score | None = None
    score_on_validation: Score | None = None  # of the model after the federated update
    is_rolled_back: bool = False  # its training diverged: its memory is that from before the round
    local: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # what its trainer keeps for the next round
    exceeds_budget: bool = False  # its privacy budget did not suffice: it did nothing, and nothing of it leaves


def load_memory(algorithm: AnyAlgorithm, start: FederationInfo, packed: messages.Flat | None) -> Any:
    """Return a client's memory from its tensors, or the one before its first round."""
    if packed is None:
        return algorithm.start_client(start)
    return messages.unpack(messages_of(algorithm).memory, split_memory(packed)[0])


LOCAL = "local/"
KEPT = "home"  # in stored memories: the part of the model that the client keeps for itself


def pack_memory(outcome: ClientOutcome) -> messages.Flat:
    """Return what lasts of a client as tensors: its method's memory, and what its trainer keeps."""
    return {**messages.pack(outcome.memory), **{LOCAL + name: tensor for name, tensor in outcome.local.items()}}


def split_memory(packed: messages.Flat) -> tuple[messages.Flat, messages.Flat]:
    """Return the method's memory and what the trainer keeps."""
    local = {name.removeprefix(LOCAL): tensor for name, tensor in packed.items() if name.startswith(LOCAL)}
    return {name: tensor for name, tensor in packed.items() if not name.startswith(LOCAL)}, local


def run_client_round(
    algorithm: AnyAlgorithm, client: Client, download: Any, memory: Any, trains: bool, score: Scorer
) -> ClientOutcome:
    """Let a client personalise and, if it is to and has examples, train.

    If what it would then remember holds a model that is not finite, it keeps the memory from before the round.
    Otherwise one bad training would spoil, for good, every method whose clients go on from their own last model.
    A client whose privacy budget does not suffice is left as it was.
    """
    before, model = client.local.before, client.model
    model.kept_values = before.get(KEPT)
    try:
        personal = algorithm.personalise(client, download, memory)
        kept, after_update = model.kept_values, score(personal.model)
        if not trains or len(client.data.train) == 0:
            return ClientOutcome(
                personal.memory, personal.model, kept_values=kept, score_after_update=after_update, local=before
            )
        trained = algorithm.train(client, download, personal.memory)
    except BudgetError:
        return ClientOutcome(memory, local=before, exceeds_budget=True)
    local = client.local.after()
    if model.kept_values is not None:
        local[KEPT] = model.kept_values
    is_rolled_back = messages.has_nonfinite_model(trained.memory) or not all(map(_is_finite, local.values()))
    return ClientOutcome(
        memory=memory if is_rolled_back else trained.memory,
        personalised=personal.model,
        kept_values=kept,
        trained=None if is_rolled_back else trained.model,
        upload=trained.upload,
        has_upload=can_contribute(client.data),
        score_after_update=after_update,
        score_after_training=score(trained.model),
        is_rolled_back=is_rolled_back,
        local=before if is_rolled_back else local,
    )


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
