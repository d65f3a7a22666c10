"""Whether a network, a loss and metrics can take some examples, found out before anything is computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedfomo.core.data import Examples
from fedfomo.core.model import Loss, Model
from fedfomo.core.trees import Tree, described, moved
from fedfomo.errors import InputError, require

MADE = 0.25, 0.75
"""Outputs that any loss can take, be they numbers, logits or probabilities."""


@torch.no_grad()
def check_examples(model: Model, theta: Tensor, examples: Examples) -> None:
    """Refuse examples that the network, the loss or a metric cannot take; two of them are tried."""
    few = examples.probe().to(model.device)
    model.load(theta)
    model.set_mode(training=False)
    step = "the model cannot take"
    try:
        outputs = model.forward(few)
        kind = type(outputs).__name__
        require(isinstance(outputs, Tensor), f"the model gives a {kind}: its outputs must be one tensor")  # pyright: ignore[reportUnnecessaryIsInstance]
        step = f"the metric cannot take {_described(outputs, few.labels)} of"
        metric = model.metrics.per_example
        figures = metric(outputs, few.labels) if metric else torch.zeros(len(few))
        model.metrics.measure_sets(outputs.cpu(), moved(few.labels, torch.device("cpu")))
        step = f"the loss cannot take {_described(outputs, few.labels)} of"
        _require_one_label_each(model.criterion, outputs, few.labels)
        loss = model.criterion(outputs, few.labels)
        kind = type(loss).__name__
        require(isinstance(loss, Tensor), f"the loss gives a {kind}: it must give a tensor, without .item()")  # pyright: ignore[reportUnnecessaryIsInstance]
    except InputError:
        raise
    except Exception as error:  # whatever a user's own code raises
        raise InputError(f"{step} these examples ({type(error).__name__}: {error})") from error
    require(loss.numel() in (1, len(few)), f"the loss gives {tuple(loss.shape)}: give the mean, or one per example")
    is_per_example = isinstance(figures, Tensor) and figures.numel() == len(few)  # pyright: ignore[reportUnnecessaryIsInstance]
    way_out = 'one of all outputs at once goes into metrics={"name": function}'
    require(is_per_example, f"the metric must give one figure per example: {way_out}")


def _require_one_label_each(loss: Loss, outputs: Tensor, labels: Tensor) -> None:
    """Refuse shapes such as (N, 1) beside (N,) if the loss makes N × N of them, which teaches nonsense in silence."""
    if outputs.shape == labels.shape:
        return
    if _spreads(loss, outputs, labels) or _compares_all(loss, outputs, labels):
        raise InputError(
            f"of {len(labels)} examples, outputs have shape {tuple(outputs.shape)} and labels {tuple(labels.shape)},"
            " and the loss compares more of them than belong together:"
            ' give both one shape, or loss="regression", which sees to it'
        )


def _spreads(loss: Loss, outputs: Tensor, labels: Tensor) -> bool:
    """Tell whether it is a loss of torch's own, whose outputs and labels of one type are stretched to one shape."""
    module = getattr(type(loss) if isinstance(loss, nn.Module) else loss, "__module__", None)
    if module not in (nn.functional.__name__, nn.modules.loss.__name__) or not labels.is_floating_point():
        return False
    try:
        torch.broadcast_shapes(outputs.shape, labels.shape)
    except RuntimeError:
        return False
    return True


def _compares_all(loss: Loss, outputs: Tensor, labels: Tensor) -> bool:
    """Tell whether the loss of two examples is the mean over all four pairs of an output and a label."""
    if len(labels) != 2 or outputs.numel() != labels.numel():
        return False
    made = torch.empty_like(outputs)  # a model may give both the same at first, of which all pairs would look alike
    made[0], made[1] = MADE

    def of(output: int, label: int) -> float:
        # Twice the same, since with a single example many a function drops a dimension too many.
        return _mean(loss(made[[output, output]], labels[[label, label]]))

    whole = _mean(loss(made, labels))
    own = (of(0, 0) + of(1, 1)) / 2
    pairs = (own + (of(0, 1) + of(1, 0)) / 2) / 2
    return math.isclose(whole, pairs, rel_tol=1e-4) and not math.isclose(whole, own, rel_tol=1e-4)


def _mean(values: Tensor) -> float:
    return float(torch.as_tensor(values).double().mean())  # a user's function may give a plain number: refused later


def _described(outputs: Tensor, labels: Tree) -> str:
    if not isinstance(labels, Tensor):
        return f"outputs of shape {tuple(outputs.shape)} and labels {described(labels)}"
    kind = str(labels.dtype).removeprefix("torch.")
    values = f" from {labels.min().item():g} to {labels.max().item():g}" if labels.numel() else ""
    return f"outputs of shape {tuple(outputs.shape)} and {kind} labels{values}"
