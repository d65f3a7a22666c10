"""Outputs and labels of different shapes, of which a loss may make more pairs than there are."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedfomo.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
MADE = 0.25, 0.75
"""Outputs that any loss can take, be they numbers, logits or probabilities."""


def require_one_label_each(loss: Loss, outputs: Tensor, labels: Tensor) -> None:
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
    home = getattr(type(loss) if isinstance(loss, nn.Module) else loss, "__module__", None)
    if home not in (nn.functional.__name__, nn.modules.loss.__name__) or not labels.is_floating_point():
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
