"""DP-SGD (Abadi et al., 2016): training whose result depends little on any single record.

Gradients of single examples come from Opacus. Of its ways to find them, two are used. Expanded weights are faster than
hooks and ghost clipping (`make bench` compares them), but know only the common layers, so functorch is there for all
others. Hooks and ghost clipping are out for another reason too: they misread convolutions whose channels come last, and
say nothing. So whatever is used is first compared with gradients that are computed one by one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.gsm_exp_weights import GradSampleModuleExpandedWeights
from torch import Tensor, nn

from fedfomo.core.data import Examples
from fedfomo.core.local_training import GradientTrainer, Place, Stepper, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.parameters import Layout, frozen_modules
from fedfomo.errors import InputError
from fedfomo.privacy.private_data import PrivateExamples

# What is left of a comparison between two orders of summation, relative to the longest gradient.
TOLERANCE = 1e-4

# Expanded weights take another, slower way through smaller batches, and lose it where channels come last.
FEWEST = 32

_Gradients = dict[str, Tensor]
"""From a parameter's name to the gradients of single examples, one row each."""


def clipped_sum(model: Model, examples: Examples, clip: float) -> Tensor:
    """Return Σ_x g_x · min(1, C / ‖g_x‖) at the loaded parameters, g_x being the gradient of x's own loss."""
    total = torch.zeros(model.whole.num_trainable, device=model.device)
    if len(examples) == 0:
        return total
    rows = {name: rows.flatten(1) for name, rows in _gradients(model, examples.to(model.device)).items()}
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in rows.values()]).norm(dim=0)
    is_whole = torch.isfinite(norms)
    if not bool(is_whole.all()):  # no factor shortens what is not finite: it counts as 0
        rows, norms = {name: part[is_whole] for name, part in rows.items()}, norms[is_whole]
    factors = clip_factors(norms, clip)
    views = model.whole.trainable_views(total)
    for name, part in rows.items():
        views[name].copy_((factors @ part).view(views[name].shape))
    return total


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """Return min(1, C / ‖g‖)."""
    return (clip / norms.clamp(min=1e-12)).clamp(max=1.0)


def refuse_unfit(model: Model, examples: Examples) -> None:
    """Refuse a network or loss for which gradients of single examples cannot be computed; without examples, layers."""
    frozen = dict(frozen_modules(model.architecture))
    for name, layer in model.architecture.named_modules():
        if name not in frozen and isinstance(layer, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]
            raise InputError(
                f"layer '{name}' is a {type(layer).__name__}, which mixes the examples of a batch: no noise makes that"
                " private; use nn.GroupNorm in its place"
            )
    if len(examples):
        _mode_of(model, examples)


_modes: WeakKeyDictionary[Model, str] = WeakKeyDictionary()


def _gradients(model: Model, examples: Examples) -> _Gradients:
    return _by(_mode_of(model, examples), model, examples)


def _mode_of(model: Model, examples: Examples) -> str:
    """Find, once, a way to compute gradients of single examples that agrees with computing them one by one."""
    if model not in _modes:
        few = next(examples.batches(3)).to(model.device)
        theta = model.read()
        dropouts = [layer for layer in model.architecture.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]  # pyright: ignore[reportPrivateUsage]
        model.train_mode()
        for layer in dropouts:  # they draw anew for every pass, which would hide any other difference
            layer.eval()
        try:
            _modes[model] = _agreeing_mode(model, few)
            if not torch.equal(model.read(), theta):
                raise InputError("the network keeps statistics of its inputs in buffers: no noise makes that private")
        finally:
            for layer in dropouts:
                layer.train()
            model.load(theta)
    return _modes[model]


def _agreeing_mode(model: Model, few: Examples) -> str:
    one_by_one = [model.backward(few.take(torch.tensor([n]))).clone() for n in range(len(few))]
    if not all(bool(torch.isfinite(gradient).all()) for gradient in one_by_one):
        raise InputError("the gradients of the first examples are not finite: look at these examples and the network")
    failures: list[str] = []
    for mode in ("expanded weights", "functorch"):
        try:
            rows = _by(mode, model, few)
        except Exception as error:  # whatever a library says about layers that it does not know
            failures.append(f"{mode}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            continue
        views = [model.whole.trainable_views(gradient) for gradient in one_by_one]
        scale = max(float(gradient.abs().max()) for gradient in one_by_one) or 1.0
        gaps = [
            float((part[n] - view[name]).abs().max()) for n, view in enumerate(views) for name, part in rows.items()
        ]
        if len(rows) == len(views[0]) and max(gaps) <= TOLERANCE * scale:
            return mode
        failures.append(f"{mode}: an example's gradient depends on the examples beside it")
    raise InputError(f"gradients of single examples cannot be had from this network ({'; '.join(failures)})")


def _by(mode: str, model: Model, examples: Examples) -> _Gradients:
    architecture, number = model.architecture, len(examples)
    if mode == "expanded weights":
        module: Any = GradSampleModuleExpandedWeights(architecture, loss_reduction="sum")
        examples = examples.take(torch.arange(max(number, FEWEST)) % number)
    else:
        module = GradSampleModule(architecture, loss_reduction="sum", force_functorch=True)
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            # Inputs need no gradient, which torch thinks worth a warning for every layer that Opacus listens to.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            model.losses(examples, through=module).sum().backward()
        found = {
            name: getattr(p, "grad_sample", None) for name, p in architecture.named_parameters() if p.requires_grad
        }
        return {name: cast(Tensor, rows)[:number] for name, rows in found.items() if rows is not None}
    finally:
        module.remove_hooks()
        for parameter in architecture.parameters():
            for left_behind in ("grad_sample", "_forward_counter", "_current_grad_sample"):
                if hasattr(parameter, left_behind):
                    delattr(parameter, left_behind)


@dataclass(frozen=True)
class DpSgd:
    """A trainer's steps on clipped, noisy gradients of Poisson samples.

    The batch size becomes the expected number of examples a step; an epoch has as many steps as without privacy.
    Weight decay and penalties read no records, so they are added after the noise and cost no ε. Whatever an optimiser
    makes of noisy gradients is as private as they are.
    """

    trainer: GradientTrainer
    noise: float  # σ, in units of the clip
    clip: float  # C

    @property
    def epochs(self) -> int:
        """Passes over the training data each round, in expectation."""
        return self.trainer.epochs

    def learning_rate_in(self, round: int, model: Model | None = None) -> float:
        """Return the step size of one round, for a model."""
        return self.trainer.learning_rate_in(round, model)

    def stepper(self, layout: Layout, round: int, num_examples: int, place: Place | None = None) -> Stepper:
        """Return the trainer's own steps: they see noisy gradients only."""
        return self.trainer.stepper(layout, round, num_examples, place)

    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[Examples]:
        """Draw every example into every batch with the same chance; a batch may be empty.

        Of examples for local use, the batches are the trainer's own.
        """
        private = _private(examples)
        if private.is_local:
            yield from map(private.holding, self.trainer.batches(private.opened(), epochs, rng))
            return
        chance, steps = self.chance(len(private)), epochs * self.steps(len(private))
        private.reserve(self.noise, chance, steps)
        for _ in range(steps):
            batch = private.sampled(chance, rng)
            yield self.trainer.vary(batch, rng)

    def steps(self, num_examples: int) -> int:
        """Return the steps of an epoch."""
        return -(-num_examples // self.trainer.batch_size)

    def chance(self, num_examples: int) -> float:
        """Return the chance of an example to be in a batch (q)."""
        return min(1.0, self.trainer.batch_size / max(1, num_examples))

    def gradient(self, model: Model, batch: Examples) -> Tensor:
        """Return (Σ clipped gradients + N(0, σ²C²)) / expected size, plus weight decay, at the loaded parameters.

        Of a batch for local use, it is the trainer's own gradient.
        """
        private = _private(batch)
        if private.is_local:
            return self._exact_gradient(model, private.opened())
        private.charge(self.noise)
        gradient = clipped_sum(model, self.trainer.transformed(private.opened()), self.clip)
        if self.noise:
            drawn = private.tracker.noise.draw(gradient.numel())
            gradient.add_(drawn.to(gradient), alpha=self.noise * self.clip)
        gradient.div_(private.expected)
        return self.trainer.regularise(gradient, model)

    def _exact_gradient(self, model: Model, batch: Examples) -> Tensor:
        if len(batch):
            return self.trainer.gradient(model, batch)
        return self.trainer.regularise(torch.zeros(model.whole.num_trainable, device=model.device), model)

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Run the epochs from the start; without noise if nothing of the result leaves the client."""
        if task.local_only:
            return self.trainer.train(model, replace(task, examples=_private(task.examples).opened()))
        return self.trainer.descend(self, model, task)


def _private(examples: Examples) -> PrivateExamples:
    if not isinstance(examples, PrivateExamples):
        raise InputError("private training was given examples of no client, for which there is no budget to charge")
    return examples
