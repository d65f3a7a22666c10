"""Many small clients as one computation.

A small network leaves a processor waiting for the interpreter. Stacked, the models of a whole group of clients are
one matrix, one row each, and a step of all of them is a handful of batched products. Sums are then taken in another
order than one by one, so results agree to rounding and not to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap  # pyright: ignore[reportUnknownVariableType]

from fedfomo.examples import Examples
from fedfomo.model import Loss, Model, Score
from fedfomo.randomness import layers_draw_from
from fedfomo.training import Sgd, Task

# Beyond this, products are large enough to fill a core by themselves.
MOST_PARAMETERS = 100_000
# How many input values are laid side by side at once when models are scored.
SCORED_AT_ONCE = 4_000_000


class Stack:
    """The models of several clients side by side."""

    def __init__(self, model: Model, loss: Loss) -> None:
        self._model = model
        self._loss = loss
        architecture = copy.deepcopy(model.architecture).train()

        def outputs(weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
            return functional_call(architecture, weights, (inputs,))

        self._outputs = vmap(outputs)

    @classmethod
    def of(cls, model: Model, examples: Examples) -> Stack | None:
        """Stack a model, or return None if that would be wrong or no gain.

        Wrong: layers that draw random numbers, keep statistics, or look across the examples of a batch, and losses
        that return a mean only. No gain: convolutions (side by side they become grouped ones, which are slow) and
        large networks.
        """
        layout = model.layout
        is_small = layout.size == layout.num_trainable <= MOST_PARAMETERS
        loss = per_example(model.criterion)
        if not is_small or len(examples) == 0 or any(len(slot.shape) > 2 for slot in layout.slots):
            return None
        stack, few = cls(model, loss), next(examples.batches(3))
        theta = model.read()
        try:
            outputs = stack._forward(theta[None], few.inputs[None])[0]
            losses = loss(outputs, few.labels)
            alone = torch.cat([model.outputs(theta, few.take(torch.tensor([n]))) for n in range(len(few))])
        except RuntimeError:  # vmap's word for what it cannot do
            return None
        is_same = outputs.shape == alone.shape and torch.allclose(outputs, alone, rtol=1e-4, atol=1e-5)
        return stack if is_same and losses.shape == (len(few),) else None

    def train(self, sgd: Sgd, tasks: Sequence[Task]) -> list[Tensor]:
        """Do what `sgd.train` does to each task, for all of them at once."""
        thetas = torch.stack([task.start for task in tasks])
        leaves = {name: view.detach().requires_grad_() for name, view in self._views(thetas).items()}
        inputs, labels = _side_by_side([task.examples for task in tasks])
        batches, weights = _plan([_batches(sgd, task) for task in tasks], sgd.batch_size)
        rates = torch.tensor([sgd.learning_rate_in(task.round) for task in tasks])[:, None]
        row = torch.arange(len(tasks))[:, None]
        velocity: Tensor | None = None
        for chosen, weight in zip(batches, weights, strict=True):
            outputs = self._outputs(leaves, inputs[row, chosen])
            losses = self._loss(outputs.flatten(0, 1), labels[row, chosen].flatten())
            total = (losses.view(weight.shape) * weight).sum()
            pieces = torch.autograd.grad(total, list(leaves.values()))
            gradient = torch.cat([piece.flatten(1) for piece in pieces], dim=1)
            if sgd.weight_decay:
                gradient.add_(thetas, alpha=sgd.weight_decay)
            for task, own, theta in zip(tasks, gradient, thetas, strict=True):
                if task.penalty is not None:
                    task.penalty.add_gradient(own, theta)
                if task.moving is not None:
                    own.mul_(task.moving)
            if sgd.momentum:
                velocity = gradient if velocity is None else velocity.mul_(sgd.momentum).add_(gradient)
                gradient = velocity
            # Whoever has no examples left in this step stays where it is.
            thetas.sub_(gradient * (rates * (weight.sum(1, keepdim=True) > 0)))
        return list(thetas)

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[Tensor, Examples]]) -> list[Score]:
        """Return the mean loss and metric of every θ on its examples; NaN where there are none."""
        scores: list[Score] = []
        longest = max((len(examples) for _, examples in pairs), default=0)
        size = max(1, SCORED_AT_ONCE // max(1, longest * pairs[0][1].inputs[:1].numel())) if pairs else 1
        for start in range(0, len(pairs), size):
            scores += self._score(pairs[start : start + size])
        return scores

    def _score(self, pairs: Sequence[tuple[Tensor, Examples]]) -> list[Score]:
        sets = list({id(examples): examples for _, examples in pairs}.values())
        position = {id(examples): place for place, examples in enumerate(sets)}
        of = torch.tensor([position[id(examples)] for _, examples in pairs])
        inputs, labels = _side_by_side(sets)
        outputs = self._forward(torch.stack([theta for theta, _ in pairs]), inputs[of]).flatten(0, 1)
        sizes = torch.tensor([len(examples) for _, examples in pairs])
        counts = (torch.arange(inputs.shape[1]) < sizes[:, None]).double()

        def mean(values: Tensor) -> list[float]:
            # A row of padding may give anything; it is not there.
            kept = torch.where(counts > 0, values.view(counts.shape).double(), 0.0)
            return (kept.sum(1) / sizes).tolist()

        losses = mean(self._loss(outputs, labels[of].flatten()))
        metrics = mean(self._model.metric(outputs, labels[of].flatten()))
        return [Score(*figures) for figures in zip(losses, metrics, sizes.tolist(), strict=True)]

    def _forward(self, thetas: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._outputs(self._views(thetas), inputs)

    def _views(self, thetas: Tensor) -> dict[str, Tensor]:
        slots = self._model.layout.slots
        return {slot.name: thetas[:, slot.start : slot.stop].unflatten(1, slot.shape) for slot in slots}


def per_example(loss: Loss) -> Loss:
    """Return a loss as one value per example, where that is known how to do."""
    return partial(nn.functional.cross_entropy, reduction="none") if loss is nn.functional.cross_entropy else loss


def _batches(sgd: Sgd, task: Task) -> list[Tensor]:
    with layers_draw_from(task.rng):  # draws what a training alone draws: the same batches follow
        return list(sgd.batch_indices(len(task.examples), task.epochs or sgd.epochs, task.rng))


def _plan(batches: Sequence[Sequence[Tensor]], size: int) -> tuple[Tensor, Tensor]:
    """Return, per step and client, which examples are taken, and each one's weight in the batch's mean."""
    steps = max((len(own) for own in batches), default=0)
    chosen = torch.zeros(steps, len(batches), size, dtype=torch.int64)
    weights = torch.zeros(steps, len(batches), size)
    for client, own in enumerate(batches):
        for step, batch in enumerate(own):
            chosen[step, client, : len(batch)] = batch
            weights[step, client, : len(batch)] = 1 / len(batch)
    return chosen, weights


def _side_by_side(sets: Sequence[Examples]) -> tuple[Tensor, Tensor]:
    """Lay sets of examples side by side, padded to the longest."""
    longest = max(1, *(len(examples) for examples in sets))
    inputs = sets[0].inputs.new_zeros(len(sets), longest, *sets[0].inputs.shape[1:])
    labels = sets[0].labels.new_zeros(len(sets), longest, *sets[0].labels.shape[1:])
    for place, examples in enumerate(sets):
        inputs[place, : len(examples)] = examples.inputs
        labels[place, : len(examples)] = examples.labels
    return inputs, labels
