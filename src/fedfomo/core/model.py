"""Loss, gradient and accuracy as functions of (θ, examples), for any `nn.Module` and any loss."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedfomo.core.bound_module import BoundModule
from fedfomo.core.data import Examples
from fedfomo.core.device import Precision, autocast, refuse_slow_bfloat16
from fedfomo.core.metrics import Measurement, Metric, Metrics, Score
from fedfomo.core.trees import Tree
from fedfomo.errors import require

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and labels to the batch's mean loss (or one loss per example)."""

# Scoring needs no gradients, so batches can be larger than in training; still larger ones leave the cache.
EVALUATION_BATCH = 200


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Tell for each example whether the largest output is the label's; outputs that are not numbers are wrong.

    Of masks, which have a label for every pixel, it is the share of pixels.
    """
    is_right = ((outputs.argmax(dim=1) == labels) & torch.isfinite(outputs).all(dim=1)).float()
    return is_right.flatten(1).mean(1) if is_right.dim() > 1 else is_right


def per_example(loss: Loss) -> Loss:
    """Return a loss as one value per example, where that is known how to do."""
    if isinstance(loss, nn.Module):
        separate: Any = copy.copy(loss)
        if not hasattr(separate, "reduction"):
            return loss
        separate.reduction = "none"
    elif getattr(loss, "__module__", None) == nn.functional.__name__:
        separate = partial(cast(Any, loss), reduction="none")
    else:
        return loss

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        values: Tensor = separate(outputs, labels)
        return values.flatten(1).mean(1) if values.dim() > 1 else values

    return losses


class Model(BoundModule):
    """A network with its loss and metrics, as functions of θ and examples, which callers hold in main memory."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = nn.functional.cross_entropy,
        metric: Metric | Metrics = accuracy,
        channels_last: bool = False,
        kept: Collection[str] = (),
        precision: Precision = "float32",
    ) -> None:
        super().__init__(module, channels_last, kept)
        self.precision: Precision = precision  # of the network's own operations; losses and θ are float32
        if precision == "bf16":
            refuse_slow_bfloat16(self.device)
        self.criterion: Loss = loss
        if isinstance(loss, nn.Module) and self.device.type != "cpu":  # it may hold weights of classes
            self.criterion = copy.deepcopy(loss).to(self.device)
        self.metrics = Metrics.of(metric)
        norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]  # pyright: ignore[reportPrivateUsage]
        self._batch_norms = [layer for layer in norms if layer not in self._frozen]

    def backward(self, batch: Examples, autocast: AbstractContextManager[Any] | None = None) -> Tensor:
        """Return the gradient of the batch's mean loss at the loaded parameters; the next call overwrites it.

        The loss, and not what goes back from it, is computed under `autocast`.
        """
        self.set_mode(training=True)
        for layer in self._batch_norms:
            # One example has no variance to normalise by: BatchNorm uses its running statistics.
            layer.train(len(batch) > 1)
        self._gradient.zero_()
        with autocast or nullcontext():
            loss = self._mean_loss(batch.to(self.device))
        loss.backward()
        return self._gradient

    def losses(self, batch: Examples, through: nn.Module | None = None) -> Tensor:
        """Return one loss per example at the loaded parameters, in training mode, to go back from.

        `through` stands for the network where somebody has wrapped it.
        """
        self.set_mode(training=True)
        return self._example_losses(batch, through)

    @torch.no_grad()
    def losses_at(self, theta: Tensor, examples: Examples) -> Tensor:
        """Return one loss per example at θ, in evaluation mode."""
        self.load(theta)
        self.set_mode(training=False)
        batches = [batch.to(self.device) for batch in examples.batches(EVALUATION_BATCH)]
        return torch.cat([self._example_losses(batch).cpu() for batch in batches])

    @torch.no_grad()
    def score(self, theta: Tensor, examples: Examples) -> Score:
        """Return the exact sample mean of the loss, and all metrics, at θ, in evaluation mode."""
        if len(examples) == 0:
            return Score(float("nan"), float("nan"), 0)
        measured = Measurement(self.metrics)
        (loss,) = self._walk([theta], examples, measured.add)
        return measured.score(loss, len(examples))

    @torch.no_grad()
    def outputs(self, theta: Tensor, examples: Examples) -> Tensor:
        """Return the network's outputs at θ, in evaluation mode."""
        self.load(theta)
        self.set_mode(training=False)
        return self.forward(examples.to(self.device)).cpu()

    @torch.no_grad()
    def figures(self, theta: Tensor, examples: Examples) -> Tensor:
        """Return the metric at θ of every single example, in evaluation mode."""
        self.load(theta)
        self.set_mode(training=False)
        batches = (batch.to(self.device) for batch in examples.batches(EVALUATION_BATCH))
        metric = self.metrics.per_example
        if metric is None:
            return torch.full((len(examples),), float("nan"), dtype=torch.float64)
        figures = [metric(self.forward(batch), batch.labels).cpu().double().flatten() for batch in batches]
        return torch.cat(figures) if figures else torch.empty(0, dtype=torch.float64)

    @torch.no_grad()
    def answers(self, theta: Tensor, examples: Examples) -> tuple[Tensor, Tensor]:
        """Return all outputs at θ, in evaluation mode, and the labels beside them."""
        found: list[tuple[Tensor, Tensor]] = []
        self._walk([theta], examples, lambda outputs, labels: found.append((outputs.cpu(), labels.cpu())))
        return torch.cat([outputs for outputs, _ in found]), torch.cat([labels for _, labels in found])

    def loss(self, theta: Tensor, examples: Examples) -> float:
        """Return the exact sample mean of the loss at θ, in evaluation mode; nothing else is measured."""
        return self.mean_losses([theta], examples)[0]

    @torch.no_grad()
    def mean_losses(self, thetas: Sequence[Tensor], examples: Examples) -> list[float]:
        """Return each θ's loss, reading the examples once: that may take longer than all models together."""
        return self._walk(thetas, examples) if len(examples) else [float("nan")] * len(thetas)

    def _walk(
        self, thetas: Sequence[Tensor], examples: Examples, see: Callable[[Tensor, Tree], None] | None = None
    ) -> list[float]:
        self.set_mode(training=False)
        losses = [0.0] * len(thetas)
        for number, batch in enumerate(examples.batches(EVALUATION_BATCH)):
            batch = batch.to(self.device)
            for place, theta in enumerate(thetas):
                if number == 0 or len(thetas) > 1:
                    self.load(theta)
                outputs = self.forward(batch)
                losses[place] += float(self.criterion(outputs, batch.labels).cpu().double().mean()) * len(batch)
                if see is not None:
                    see(outputs, batch.labels)
        return [loss / len(examples) for loss in losses]

    def rebuilt(self, build: Callable[[nn.Module], nn.Module]) -> Model:
        """Return a model with the same loss and metric around another network that is built from this one's.

        `build` receives a copy of the module; if it returns that copy itself, the model stays as it is.
        """
        given = copy.deepcopy(self.architecture)
        built = build(given)
        if built is given:
            return self
        names = [name for name, _ in (*built.named_parameters(), *built.named_buffers())]
        kept = [name for name in names if any(f".{name}".endswith(f".{own}") for own in self.kept)]
        return Model(built, self.criterion, self.metrics, self.layout.channels_last, kept, self.precision)

    def _example_losses(self, batch: Examples, through: nn.Module | None = None) -> Tensor:
        losses = per_example(self.criterion)(self.forward(batch, through), batch.labels)
        is_per_example = losses.numel() == len(batch)
        require(is_per_example, "the loss gives a mean of examples: give one that returns one value per example")
        return losses.view(len(batch))

    def _mean_loss(self, batch: Examples) -> Tensor:
        return self.criterion(self.forward(batch), batch.labels).mean()

    def forward(self, batch: Examples, through: nn.Module | None = None) -> Tensor:
        """Return the network's outputs at the loaded parameters, in the mode that it is in."""
        inputs = batch.inputs
        if self.layout.channels_last and isinstance(inputs, Tensor):
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with autocast(self.device, self.precision):
            outputs = (through or self.architecture)(inputs)
        return outputs if self.precision == "float32" else outputs.float()


def prefers_channels_last(module: nn.Module, inputs: Tree) -> bool:
    """Tell whether a network of convolutions can run with channels last, which CPUs compute a good deal faster.

    A module that calls `.view` on feature maps cannot: their memory is then in another order.
    """
    has_convolutions = any(parameter.dim() == 4 for parameter in module.parameters())
    if not has_convolutions or not isinstance(inputs, Tensor) or inputs.dim() != 4:
        return False
    trial: Any = copy.deepcopy(module).eval()
    try:
        with torch.no_grad():
            trial.to(memory_format=torch.channels_last)(inputs[:2].contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        return False
    return True
