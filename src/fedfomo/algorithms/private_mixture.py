"""Private mixture (Peterson, Kanani, Marathe, 2019): a shared expert, a private expert, and a gate between them.

A client answers ŷ = α(x)·M_G(x) + (1 − α(x))·M_i(x). All three parts descend together on the loss of ŷ. Only the
shared expert travels; its coordinates are those below `shared` in the mixture's θ, so that whoever trains can tell
what leaves the client (and needs noise) from what stays.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

from fedfomo.algorithms.fedavg import AveragingServer, Download, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Trained
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.messages import Coordinates, Parameters
from fedfomo.core.options import CountOrZero
from fedfomo.core.parameters import Layout
from fedfomo.errors import require

CERTAIN = 100.0  # a gate's bias that leaves the private expert nothing


@dataclass(frozen=True)
class Memory:
    """What never leaves a client."""

    private: Parameters  # θ_i
    gate: Coordinates | None  # w_i, b_i; none before the first training


class Mixture(nn.Module):
    """Two copies of a network, and a gate that looks at the last hidden layer of the first."""

    def __init__(self, network: nn.Module, blends: str) -> None:
        super().__init__()
        linear = [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        require(bool(linear), "private-mixture needs a network with a linear layer, whose inputs its gate can read")
        self._last, last = linear[-1]
        self._blends = blends
        self.shared = network
        self.private = copy.deepcopy(network)
        self.gate = nn.utils.skip_init(nn.Linear, last.in_features, 1, device=last.weight.device)
        for parameter in self.gate.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ŷ; probabilities as their logarithms, which are logits too."""
        hidden: list[Tensor] = []
        last = self.shared.get_submodule(self._last)
        watch = last.register_forward_pre_hook(lambda _, given: hidden.append(given[0].detach()))
        try:
            shared = self.shared(inputs)
        finally:
            watch.remove()
        private, opening = self.private(inputs), self.gate(hidden[-1])
        if self._blends == "outputs":
            return opening.sigmoid() * shared + (-opening).sigmoid() * private
        return torch.logaddexp(
            logsigmoid(opening) + log_softmax(shared, dim=1), logsigmoid(-opening) + log_softmax(private, dim=1)
        )


@dataclass(frozen=True)
class Places:
    """Where the parts of a mixture lie in its θ."""

    shared: Tensor
    private: Tensor
    gate: Tensor

    @classmethod
    def of(cls, layout: Layout) -> Places:
        """Read them off a mixture's layout."""
        return cls(*(layout.coordinates_below(name) for name in ("shared", "private", "gate")))

    def joined(self, shared: Tensor, memory: Memory) -> Tensor:
        """Return the θ of a mixture."""
        theta = torch.zeros(len(self.shared) + len(self.private) + len(self.gate))
        theta[self.shared], theta[self.private] = shared, memory.private
        if memory.gate is not None:
            theta[self.gate] = memory.gate
        return theta


@register("private-mixture", paper="Peterson et al., 2019")
@dataclass(frozen=True)
class PrivateMixture(AveragingServer[Memory]):
    """Mix the answers of a shared and a private model by a gate that each client learns."""

    compute: ClassVar[str] = "2 × FedAvg (4 × if shared_learns_from=itself)"

    blends: Literal["probabilities", "outputs"] = "probabilities"
    """What the gate mixes: probabilities of classes, or outputs as they are, for regression."""
    shared_learns_from: Literal["mixture", "itself"] = "mixture"
    """The loss that trains the shared expert: the whole mixture's, as in the paper, or that of its own answers."""
    gate_waits: CountOrZero = 0
    """Rounds before the gate learns; it would at once give a noisy shared expert no weight."""

    def network(self, module: nn.Module) -> Mixture:
        """Let two copies of the network answer, with a gate between them."""
        return Mixture(module, self.blends)

    def start_client(self, start: FederationInfo) -> Memory:
        """Start with the common initial model for a private expert, and a gate that is half open."""
        return Memory(start.initial, None)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Put the shared expert beside the private one."""
        places = Places.of(client.model.layout)
        theta = places.joined(download.model, memory)
        if len(client.data.train) == 0:
            # Departs from the paper: a private expert that cannot learn has weight 0.
            theta[places.gate[-1]] = CERTAIN
        return Personalised(theta, memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train experts and gate, together or the shared expert first; it is what leaves."""
        places = Places.of(client.model.layout)
        moving = torch.ones(client.model.layout.size, dtype=torch.bool)
        moving[places.gate] = client.round >= self.gate_waits
        theta = places.joined(download.model, memory)
        if self.shared_learns_from == "mixture":
            trained = client.train(theta, trainable_mask=moving[: client.num_trainable])
        else:
            shared = self._train_shared(client, theta, places)
            moving[places.shared] = False
            theta[places.shared] = shared
            mask, stays = moving[: client.num_trainable], not client.keeps_part
            trained = client.train(theta, trainable_mask=mask, local_only=stays, purpose="train what stays")
            trained[places.shared] = shared  # its buffers were carried along
        upload = Upload(trained[places.shared], len(client.data.train))
        return Trained(upload, Memory(trained[places.private], trained[places.gate]), trained)

    def _train_shared(self, client: Client, theta: Tensor, places: Places) -> Tensor:
        """Train the shared expert as if it were alone: what stays on the client has no part in what leaves."""
        alone = torch.zeros_like(theta)
        alone[places.shared], alone[places.gate[-1]] = theta[places.shared], CERTAIN
        moving = torch.zeros(client.model.layout.size, dtype=torch.bool)
        moving[places.shared] = True
        return client.train(alone, trainable_mask=moving[: client.num_trainable])[places.shared]
