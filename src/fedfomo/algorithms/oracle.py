"""The oracle: FedAvg among the clients whose data come from the same distribution.

No method can know these groups. It marks what a federation could reach if it knew them. A client whose target is
another distribution than that of its training data helps to train the model of its own, and uses that of its target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedfomo.algorithms.fedavg import FedAvgClient, Upload, average_uploads
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Ids, Parameters
from fedfomo.errors import InputError


@dataclass(frozen=True)
class State:
    """One model for each group; a group goes by the name of its first client."""

    models: Mapping[int, Parameters]
    groups: Ids  # every client's
    targets: Ids  # the group that every client's target comes from; −1 if nobody trains on it


@dataclass(frozen=True)
class Download:
    """The model of the client's group, and that of its target if it is another."""

    model: Parameters
    target: Parameters | None


@register("oracle")
@dataclass(frozen=True)
class Oracle(FedAvgClient[State, Download]):
    """Train one model for each true group of clients, which no method could know; a reference, no upper bound."""

    sends: ClassVar[str] = "1 model down (2 for a foreign target), 1 up with its number of examples"
    needs_groups: ClassVar[bool] = True

    def start_server(self, start: FederationInfo) -> State:
        """Start every group from the common initial model."""
        if start.groups is None:
            raise InputError(
                "the oracle runs FedAvg inside clients' true groups, and this scenario has none: "
                "choose a scenario of groups (latent, ood), or another method"
            )
        first_of = {group: start.groups.index(group) for group in start.groups}
        groups = torch.tensor([first_of[group] for group in start.groups], dtype=torch.int64)
        targets = torch.tensor([first_of.get(group, -1) for group in start.targets or start.groups])
        return State(dict.fromkeys(sorted(first_of.values()), start.initial), groups, targets)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the model of the client's group, and that of its target."""
        group, target = int(state.groups[to]), int(state.targets[to])
        is_foreign = target in state.models and target != group
        return Download(state.models[group], state.models[target] if is_foreign else None)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Average the uploads of every group; one of which nobody answered stays."""
        groups = state.groups.tolist()
        models = {
            group: average_uploads({n: upload for n, upload in uploads.items() if groups[n] == group}, otherwise=model)
            for group, model in state.models.items()
        }
        return replace(state, models=models)

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Use the target's model as it is."""
        return Personalised(download.model if download.target is None else download.target, None)
