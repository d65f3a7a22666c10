"""FedFomo as it is usually written: the loop that the engine is measured against.

One process, `DataLoader`s, deep-copied modules, `torch.optim.SGD`, and if asked for channels last. It does the same
work as a round of the simulator, scoring on test data included.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedfomo.core.data import ClientData, Examples


class ReferenceLoop:
    """All clients of a federation, visited one after the other."""

    def __init__(
        self,
        module: nn.Module,
        clients: Sequence[ClientData],
        batch_size: int,
        epochs: int,
        downloads: int,
        channels_last: bool = False,
    ) -> None:
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        module = copy.deepcopy(module).to(memory_format=self._format)
        self._clients = clients
        self._batch_size = batch_size
        self._epochs = epochs
        self._downloads = downloads
        self._models = [copy.deepcopy(module) for _ in clients]
        self._previous = [copy.deepcopy(module) for _ in clients]

    def run_round(self, clients: int | None = None) -> None:
        """Mix, train and score every client, or the first few."""
        uploads = [copy.deepcopy(model) for model in self._models]
        for number, data in enumerate(self._clients[:clients]):
            others = [(number + step + 1) % len(uploads) for step in range(self._downloads)]
            mixed = self._mix(number, [uploads[number], *(uploads[other] for other in others)])
            self._previous[number] = copy.deepcopy(mixed)
            self._score(mixed, data.test)
            self._train(mixed, data.train)
            self._score(mixed, data.test)
            self._models[number] = mixed

    def train_first(self) -> None:
        """Train the first client, and no more."""
        self._train(self._models[0], self._clients[0].train)

    def _mix(self, number: int, candidates: list[nn.Module]) -> nn.Module:
        reference, validation = self._previous[number], self._clients[number].validation
        base = self._score(reference, validation)
        weights: list[float] = []
        for candidate in candidates:
            pairs = zip(candidate.parameters(), reference.parameters(), strict=True)
            distance = sum(float(((p - q) ** 2).sum().detach()) for p, q in pairs) ** 0.5
            weights.append(max(0.0, (base - self._score(candidate, validation)) / (distance + 1e-5)))
        mixed = copy.deepcopy(reference)
        total = sum(weights) or 1.0
        with torch.no_grad():
            for weight, candidate in zip(weights, candidates, strict=True):
                pairs = zip(mixed.parameters(), candidate.parameters(), reference.parameters(), strict=True)
                for target, theirs, start in pairs:
                    target.add_(theirs - start, alpha=weight / total)
        return mixed

    def _train(self, model: nn.Module, examples: Examples) -> None:
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
        loader = DataLoader(TensorDataset(examples.inputs, examples.labels), self._batch_size, shuffle=True)
        for _ in range(self._epochs):
            for inputs, labels in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(self._laid(inputs)), labels).backward()
                optimiser.step()

    def _score(self, model: nn.Module, examples: Examples) -> float:
        model.eval()
        loss = 0.0
        with torch.no_grad():
            for inputs, labels in DataLoader(TensorDataset(examples.inputs, examples.labels), self._batch_size):
                loss += float(nn.functional.cross_entropy(model(self._laid(inputs)), labels)) * len(labels)
        return loss / len(examples)

    def _laid(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=self._format)
