"""Many small clients as one computation.

A small network leaves a processor waiting for the interpreter. Stacked, the models of a whole group of clients are
one matrix, one row each, and a step of all of them is a handful of batched products. Sums are then taken in another
order than one by one, so results agree to rounding and not to the bit.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap  # pyright: ignore[reportUnknownVariableType]

from fedfomo.core.data import Examples
from fedfomo.core.device import autocast
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Loss, Model, Score, per_example
from fedfomo.core.rng import layer_seed
from fedfomo.core.trees import Tree

# Beyond this, products are large enough to fill a core by themselves.
MOST_PARAMETERS = 100_000
# How many input values are laid side by side at once when models are scored.
SCORED_AT_ONCE = 4_000_000
# Examples, from all over a set, by which it is found out whether stacking is right.
EXAMINED = 30

log = logging.getLogger(__name__)

_Outputs = Callable[[dict[str, Tensor], Tensor], Tensor]
"""From the weights and the inputs of several models, each with one dimension more in front, to their outputs."""


class Stack:
    """The models of several clients side by side."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loss = per_example(model.criterion)
        architecture = copy.deepcopy(model.architecture).train()
        self._network = _layer_by_layer(architecture) or _vectorised(architecture)

    @classmethod
    def of(cls, model: Model, examples: Examples, others: Sequence[Examples] = ()) -> Stack | None:
        """Stack a model for all of these examples, or return None if that would be wrong or no gain.

        Wrong: layers that draw random numbers, keep statistics, or look across the examples of a batch, and losses
        that return a mean only, or one in which examples count differently, or that look across a batch themselves.
        So would examples be of different types or shapes. The first set is the one on which all this is tried.
        No gain: see `pays`.
        """
        layout, sets = model.layout, [part for part in (examples, *others) if len(part)]
        is_weighted = getattr(model.criterion, "weight", None) is not None
        is_whole = layout.size == layout.num_trainable and _moves_whole(model)
        if not pays(model) or is_weighted or not is_whole or not len(examples):
            return None
        if not _are_alike(sets) or _ignores_some(model.criterion, sets):
            return None
        spread = torch.linspace(0, len(examples) - 1, min(len(examples), EXAMINED)).long()
        try:
            stack = cls(model)
            return stack if stack._is_right_on(examples.take(spread)) else None
        except Exception as error:  # vmap's word for what it cannot do, and whatever a user's own code raises
            log.info("clients are computed one by one: together they fail (%s: %s)", type(error).__name__, error)
            return None

    def _is_right_on(self, few: Examples) -> bool:
        """Tell whether outputs and losses side by side are those of every example alone."""
        model, loss = self._model, self._loss
        theta = model.read()
        outputs = self._forward(theta[None].to(model.device), few.inputs[None].to(model.device))[0].cpu()
        losses, mean = loss(outputs, few.labels), model.criterion(outputs, few.labels).mean()
        alone = torch.cat([model.outputs(theta, few.take(torch.tensor([n]))) for n in range(len(few))])
        apart = torch.cat([loss(outputs[[n]], few.labels[[n]]) for n in range(len(few))])
        rtol, atol = (1e-4, 1e-5) if model.precision == "float32" else (3e-2, 3e-2)
        is_same = outputs.shape == alone.shape and torch.allclose(outputs, alone, rtol=rtol, atol=atol)
        is_mean = losses.shape == (len(few),) and torch.allclose(losses.mean(), mean, rtol=1e-4)
        are_apart = apart.shape == losses.shape and torch.allclose(apart, losses, rtol=1e-4, atol=1e-5)
        return is_same and is_mean and are_apart

    def train(self, sgd: Sgd, tasks: Sequence[TrainingJob]) -> list[Tensor]:
        """Do what `sgd.train` does to each task, for all of them at once."""
        device = self._model.device
        thetas = torch.stack([task.start for task in tasks]).to(device)
        views = self._model.layout.views(thetas)
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        inputs, labels = _side_by_side([task.examples for task in tasks], device)
        batches, weights = (part.to(device) for part in _plan(sgd, tasks))
        rates = torch.tensor([sgd.learning_rate_in(task.round) for task in tasks], device=device)[:, None]
        active = (weights.sum(2, keepdim=True) > 0) * rates
        row = torch.arange(len(tasks), device=device)[:, None]
        constrained = [
            (client, task)
            for client, task in enumerate(tasks)
            if task.penalty is not None or task.trainable_mask is not None
        ]
        velocity: Tensor | None = None
        for chosen, weight, step in zip(batches, weights, active, strict=True):
            outputs = self._outputs(leaves, inputs[row, chosen])
            losses = self._loss(outputs.flatten(0, 1), labels[row, chosen].flatten(0, 1))
            total = (losses.view(weight.shape) * weight).sum()
            pieces = torch.autograd.grad(total, list(leaves.values()))
            gradient = torch.cat([self._model.layout.flat(piece) for piece in pieces], dim=1)
            if sgd.weight_decay:
                gradient.add_(thetas, alpha=sgd.weight_decay)
            for client, task in constrained:
                task.constrain(gradient[client], thetas[client])
            if sgd.momentum:
                velocity = gradient if velocity is None else velocity.mul_(sgd.momentum).add_(gradient)
                gradient = velocity
            thetas.sub_(gradient * step)  # 0 for whoever has no examples left
        return list(thetas.cpu())

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[Tensor, Examples]], measured: Sequence[bool] | None = None) -> list[Score]:
        """Return the mean loss and metrics of every θ on its examples; NaN where there are none.

        Where `measured` says no, metrics of sets are left out: only the loss is asked for.
        """
        measured = measured or [True] * len(pairs)
        scores: list[Score] = []
        sets = list({id(examples): examples for _, examples in pairs}.values())
        values = max((math.prod(examples.inputs.shape[1:]) for examples in sets), default=0)
        size = max(1, SCORED_AT_ONCE // max(1, values * max(map(len, sets), default=0)))
        for start in range(0, len(pairs), size):
            scores += self._score(pairs[start : start + size], measured[start : start + size])
        return scores

    def _score(self, pairs: Sequence[tuple[Tensor, Examples]], measured: Sequence[bool]) -> list[Score]:
        sets = list({id(examples): examples for _, examples in pairs}.values())
        position = {id(examples): place for place, examples in enumerate(sets)}
        device = self._model.device
        places, lengths = [position[id(examples)] for _, examples in pairs], list(map(len, sets))
        of = torch.tensor(places, device=device)
        inputs, labels = _side_by_side(sets, device)
        apart = self._forward(torch.stack([theta for theta, _ in pairs]).to(device), inputs[of])
        outputs = apart.flatten(0, 1)
        sizes = torch.tensor(lengths)[places]
        is_there = torch.arange(inputs.shape[1]) < sizes[:, None]

        def mean(values: Tensor) -> list[float]:
            # A row of padding may give anything. Some devices have no float64: sums are taken in main memory.
            kept = torch.where(is_there, values.view(is_there.shape).cpu().double(), 0.0)
            return (kept.sum(1) / sizes).tolist()

        losses = mean(self._loss(outputs, labels[of].flatten(0, 1)))
        metrics = self._model.metrics
        figures = metrics.per_example
        means = mean(figures(outputs, labels[of].flatten(0, 1))) if figures else [math.nan] * len(pairs)
        scores: list[Score] = []
        for place, (_, examples) in enumerate(pairs):
            number, of_sets = lengths[places[place]], dict[str, float]()
            if not (metrics.of_sets and measured[place] and number):
                scores.append(Score(losses[place], means[place], number))
                continue
            of_sets = metrics.measure_sets(apart[place, :number].cpu(), examples.labels)
            scores.append(metrics.score(losses[place], means[place], of_sets, number))
        return scores

    def _forward(self, thetas: Tensor, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._outputs(self._model.layout.views(thetas), inputs)

    def _outputs(self, weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        with autocast(self._model.device, self._model.precision):
            return self._network(weights, inputs).float()


def pays(model: Model) -> bool:
    """Tell whether models side by side are faster than one after the other, as far as device and network tell.

    An accelerator is idle unless it is given much to do at once. On a CPU, small perceptrons gain; convolutions, which
    become grouped ones, neither gain nor lose, and large networks fill a core by themselves.
    """
    layout = model.layout
    is_small = layout.size <= MOST_PARAMETERS and all(len(slot.shape) <= 2 for slot in layout.slots)
    return is_small or model.device.type != "cpu"


def _are_alike(sets: Sequence[Examples]) -> bool:
    """Tell whether all inputs, and all labels, are plain tensors of one type, of one shape but for their number."""
    forms = {(_form(examples.inputs), _form(examples.labels)) for examples in sets}
    return len(forms) == 1 and None not in next(iter(forms))


def _form(part: Tree) -> tuple[torch.dtype, torch.Size] | None:
    return (part.dtype, part.shape[1:]) if isinstance(part, Tensor) and part.layout == torch.strided else None


def _ignores_some(loss: Loss, sets: Sequence[Examples]) -> bool:
    """Tell whether a loss leaves out some of the labels: then a mean is not over all examples of a batch."""
    ignored = getattr(loss, "ignore_index", None)
    if ignored is None and getattr(loss, "__module__", None) == nn.functional.__name__:
        parameter = inspect.signature(loss).parameters.get("ignore_index")
        ignored = parameter and parameter.default
    return ignored is not None and any(bool((examples.labels == ignored).any()) for examples in sets)


def _moves_whole(model: Model) -> bool:
    """Tell whether all of a network's parameters are in θ: none is frozen, none is kept by clients for themselves."""
    return len(model.layout.trainable_views(model.trainable)) == sum(1 for _ in model.architecture.parameters())


def _vectorised(architecture: nn.Module) -> _Outputs:
    """Stack any network that torch can see through."""

    def outputs(weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(architecture, weights, (inputs,))

    return vmap(outputs)


def _layer_by_layer(architecture: nn.Module) -> _Outputs | None:
    """Stack a plain perceptron: half the time of the general way, which adds biases apart and looks up every name."""
    layers = dict(architecture.named_children())
    is_plain = all(type(layer) in _PLAIN or _flattens_all(layer) for layer in layers.values())
    if type(architecture) is not nn.Sequential or not is_plain or len(layers) < len(architecture):
        return None

    def outputs(weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        for name, layer in layers.items():
            if isinstance(layer, nn.Linear):
                rows = inputs.flatten(1, -2)
                weight, bias = weights[f"{name}.weight"].mT, weights.get(f"{name}.bias")
                products = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias[:, None], rows, weight)
                inputs = products.unflatten(1, inputs.shape[1:-1])
            else:
                inputs = inputs.flatten(2) if isinstance(layer, nn.Flatten) else layer(inputs)
        return inputs

    return outputs


_PLAIN = {nn.Linear, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity}


def _flattens_all(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)


def _plan(sgd: Sgd, tasks: Sequence[TrainingJob]) -> tuple[Tensor, Tensor]:
    """Return, per step and client, which examples are taken, and each one's weight in the batch's mean."""
    size = sgd.batch_size
    epochs = [task.epochs_of(sgd) for task in tasks]
    lengths = [-(-len(task.examples) // size) for task in tasks]  # steps an epoch
    steps = max(length * number for length, number in zip(lengths, epochs, strict=True))
    chosen = torch.zeros(len(tasks), steps, size, dtype=torch.int64)
    weights = torch.zeros(len(tasks), steps, size)
    for client, (task, length, number) in enumerate(zip(tasks, lengths, epochs, strict=True)):
        if length == 0 or number == 0:
            continue
        num_examples = len(task.examples)
        last = num_examples - (length - 1) * size
        layer_seed(task.rng)  # no layer draws here, but a training alone does: the same batches follow
        orders = torch.stack([torch.randperm(num_examples, generator=task.rng) for _ in range(number)])
        padded = nn.functional.pad(orders, (0, size - last))
        chosen[client, : number * length] = padded.view(-1, size)
        weight = torch.full((length, size), 1 / size)
        weight[-1] = (torch.arange(size) < last) / last
        weights[client, : number * length] = weight.repeat(number, 1)
    return chosen.transpose(0, 1).contiguous(), weights.transpose(0, 1).contiguous()


def _side_by_side(sets: Sequence[Examples], device: torch.device) -> tuple[Tensor, Tensor]:
    """Lay sets of examples side by side on a device, padded to the longest."""
    first = next((examples for examples in sets if len(examples)), sets[0])  # an empty one need not look like the rest
    longest = max(1, *(len(examples) for examples in sets))
    inputs = first.inputs.new_zeros(len(sets), longest, *first.inputs.shape[1:])
    labels = first.labels.new_zeros(len(sets), longest, *first.labels.shape[1:])
    for place, examples in enumerate(sets):
        if len(examples):
            inputs[place, : len(examples)] = examples.inputs
            labels[place, : len(examples)] = examples.labels
    return inputs.to(device), labels.to(device)
