"""A network whose tensors are views of one working vector: a vector θ is copied in and out, and no caller's is kept."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedfomo.core.parameters import Layout, frozen_modules


class BoundModule:
    """An architecture, and the vector that its parameters and buffers are views of.

    Its gradients are views of another vector, so an optimiser's step is one operation on vectors. θ is what travels;
    what a client keeps for itself (`kept`) lies behind it in the working vector. Whatever the device of the network,
    callers hold θ in main memory.
    """

    def __init__(self, module: nn.Module, channels_last: bool = False, kept: Collection[str] = ()) -> None:
        self.layout, self.whole = Layout.split(module, channels_last, kept)  # of what travels; of all that trains
        self.kept = frozenset(kept)  # names of what each client keeps for itself
        self.architecture = module
        self.device = next(module.parameters()).device
        self._theta = self.whole.flatten(module).to(self.device)
        self._gradient = torch.zeros(self.whole.num_trainable, device=self.device)
        frozen = [layer for _, layer in frozen_modules(module)]
        self._frozen = [layer for layer in frozen if isinstance(layer, nn.modules.batchnorm._NormBase)]  # pyright: ignore[reportPrivateUsage]
        self._constants = self._buffers_of_no_theta()
        self._has_buffers = any(True for _ in module.buffers())
        self._bind()
        self.train_mode()
        self._first_kept = self.kept_values

    @property
    def trainable(self) -> Tensor:
        """The working parameters' trainable coordinates, live: what travels, then what the client keeps."""
        return self._theta[: self.whole.num_trainable]

    def read(self) -> Tensor:
        """Copy the working parameters that travel out."""
        self._rebind_replaced_buffers()
        if not self.kept:
            return self._theta.to("cpu", copy=True)
        return torch.cat(self._parts(travelling=True)).to("cpu", copy=True)

    def load(self, theta: Tensor) -> Tensor:
        """Copy θ into the module and return its trainable coordinates, live.

        Buffers that are not in θ are set back to the values that the module was built with; what the client keeps
        stays as it is.
        """
        self._rebind_replaced_buffers()
        if not self.kept:
            self._theta.copy_(theta)
        else:
            self._fill(theta, travelling=True)
        for name, value in self._constants.items():
            self.architecture.get_buffer(name).copy_(value)
        return self.trainable

    @property
    def kept_values(self) -> Tensor | None:
        """What the client at work keeps for itself; None if clients keep nothing."""
        if not self.kept:
            return None
        self._rebind_replaced_buffers()
        return torch.cat(self._parts(travelling=False)).to("cpu", copy=True)

    @kept_values.setter
    def kept_values(self, values: Tensor | None) -> None:
        """Let a client work that keeps these values; None: one that has not trained yet."""
        chosen = self._first_kept if values is None else values
        if chosen is not None:
            self._rebind_replaced_buffers()
            self._fill(chosen, travelling=False)

    @property
    def kept_layout(self) -> Layout:
        """The layout of what is kept and trains, alone."""
        behind = self.layout.num_trainable
        slots = [slot for slot in self.whole.slots if behind <= slot.start < self.whole.num_trainable]
        moved = tuple(replace(slot, start=slot.start - behind) for slot in slots)
        size = self.whole.num_trainable - behind
        return Layout(moved, size, size, self.layout.channels_last)

    def _parts(self, travelling: bool) -> list[Tensor]:
        """Return views of the trainable coordinates and of the buffers: those that are sent, or those that are kept."""
        trainable, buffers = self._theta.tensor_split([self.whole.num_trainable])
        cuts = self.layout.num_trainable, self.layout.size - self.layout.num_trainable
        pieces = [part.tensor_split([cut]) for part, cut in zip((trainable, buffers), cuts, strict=True)]
        return [sent if travelling else kept for sent, kept in pieces]

    def _fill(self, values: Tensor, travelling: bool) -> None:
        first, second = self._parts(travelling)
        first.copy_(values[: len(first)])
        second.copy_(values[len(first) :])

    def adopt(self, network: nn.Module) -> Tensor:
        """Take the parameters and buffers of a network of this architecture, wherever it is; return what travels."""
        tensors = network.state_dict()
        for name, view in self.whole.views(self._theta).items():
            view.copy_(tensors[name])
        return self.read()

    def export(self, theta: Tensor, kept_values: Tensor | None) -> Tensor:
        """Return all that moves in one vector, in the order of a model of which nothing is kept."""
        if not self.kept:
            return theta
        self.load(theta)
        self.kept_values = kept_values
        return Layout.of(self.architecture, self.layout.channels_last).flatten(self.architecture)

    def take_apart(self, exported: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what travels and what stays of a vector that `export` gave."""
        if not self.kept:
            return exported, None
        plain = Layout.of(self.architecture, self.layout.channels_last)
        values = {name: view.clone() for name, view in plain.views(exported).items()}
        before = self._theta.clone()
        for name, view in self.whole.views(self._theta).items():
            view.copy_(values[name])
        parts = self.read(), self.kept_values
        self._theta.copy_(before)
        return parts

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The network's own parameters that train, live, in the network's order."""
        return [parameter for parameter in self.architecture.parameters() if parameter.requires_grad]

    def set_gradient(self, gradient: Tensor) -> None:
        """Let the parameters have a gradient, for an optimiser's step; it is theirs already if `backward` gave it."""
        if gradient is not self._gradient:
            self._gradient.copy_(gradient)

    def state_dict(self, theta: Tensor) -> dict[str, Tensor]:
        """Return θ as the module's own `state_dict`, ready for `load_state_dict`."""
        self.load(theta)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.architecture.state_dict().items()}

    def stacked_state_dict(self, thetas: Tensor) -> dict[str, Tensor]:
        """Return several θ, one a row, as one `state_dict` whose tensors have an axis of models in front."""
        views, names = self.layout.views(thetas), list(self.architecture.state_dict())
        if set(names) <= views.keys():  # a hundred small models at once, instead of one by one
            return {name: views[name].contiguous() for name in names}
        states = [self.state_dict(theta) for theta in thetas]
        return {name: torch.stack([state[name] for state in states]) for name in names}

    def network(self, theta: Tensor) -> nn.Module:
        """Return a network of its own with these parameters, ready for use."""
        self.load(theta)
        alone = copy.deepcopy(self.architecture)
        for parameter in alone.parameters():
            parameter.grad = None
        return alone.to("cpu", memory_format=torch.contiguous_format).eval()  # pyright: ignore[reportCallIssue]

    def set_mode(self, training: bool) -> None:
        """Let layers behave as in training, or as in evaluation."""
        # Walking through all layers takes longer than a step of a small network: only when it changes something.
        if self.architecture.training != training:
            self.train_mode() if training else self.architecture.eval()

    def train_mode(self) -> None:
        """Let layers behave as in training, but for those that normalise by statistics and are frozen."""
        self.architecture.train()
        for layer in self._frozen:
            layer.eval()

    def _buffers_of_no_theta(self) -> dict[str, Tensor]:
        """Copy the buffers that training might move and θ does not hold."""
        known = {slot.name for slot in self.whole.slots}
        fixed = {id(buffer) for layer in self._frozen for buffer in layer.buffers()}
        buffers = self.architecture.named_buffers()
        return {name: b.clone() for name, b in buffers if name not in known and id(b) not in fixed}

    def _bind(self) -> None:
        values = self.whole.views(self._theta)
        for name, parameter in self.architecture.named_parameters():
            if name in values:
                parameter.data = values[name]
        for name, gradient in self.whole.trainable_views(self._gradient).items():
            self.architecture.get_parameter(name).grad = gradient
        for name in dict(self.architecture.named_buffers()):
            if name in values:
                self._set_buffer(name, values[name])

    def _rebind_replaced_buffers(self) -> None:
        # A layer may assign a new tensor to a buffer where others write into it.
        if not self._has_buffers:
            return
        values = self.whole.views(self._theta)
        for name, buffer in self.architecture.named_buffers():
            if name in values and buffer.data_ptr() != values[name].data_ptr():
                values[name].copy_(buffer)
                self._set_buffer(name, values[name])

    def _set_buffer(self, name: str, value: Tensor) -> None:
        owner, _, leaf = name.rpartition(".")
        setattr(self.architecture.get_submodule(owner), leaf, value)
