"""VGG-11 as an embedding of images, trained from scratch: the first step towards the paper's latent distributions.

Training is cut into steps whose randomness depends on the step's number only, and its whole state goes to disk
every few minutes; so a run that was killed continues to the very weights that it would have reached anyway.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from fedfomo.core.archives import map_npy
from fedfomo.core.augmentation import crop_and_flip
from fedfomo.core.networks import Vgg11, vgg11
from fedfomo.core.rng import layer_rng, stream
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.standardise import Scale
from fedfomo.errors import InputError, reading
from fedfomo.io import write_atomically

_REPORT_EVERY = 25  # steps
_SCORING_BATCH = 500


@dataclass(frozen=True)
class Schedule:
    """How the embedder is trained: SGD with warm-up and linear decay, on randomly cropped and flipped images."""

    sides: tuple[int, ...] = (24, 24, 24, 24, 32, 32, 32, 32, 32)  # of the images, one entry per epoch
    batch_size: int = 128
    peak_rate: float = 0.06
    warm_up: float = 0.2  # share of all steps
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.1
    padding: int = 4  # pixels by which a crop may lie off centre
    flip: bool = True
    seed: int = 0

    def rate(self, progress: float) -> float:
        """Return the learning rate once this share of the training is over."""
        return self.peak_rate * min(progress / self.warm_up, (1 - progress) / (1 - self.warm_up))


@dataclass(frozen=True)
class Progress:
    """What a running training says of itself."""

    step: int
    steps: int
    loss: float  # mean over the steps since the last report
    accuracy: float  # likewise, on the augmented training images
    seconds_left: float


@dataclass(frozen=True)
class Embedding:
    """The activations that stand for the images, training before test, and how well their network classifies."""

    rows: NDArray[np.float16]
    accuracy: float  # on the test images


def schedule_for(data: DataSet) -> Schedule:
    """Return the schedule with which a set's published embedding was trained."""
    side = data.train.inputs.shape[-1]
    if data.name == "mnist":
        return Schedule(sides=(side,) * 2, flip=False)
    return Schedule() if side == 32 else Schedule(sides=(side,) * 9)


def build_embedding(
    data: DataSet, folder: Path, schedule: Schedule, report: Callable[[Progress], None] = lambda _: None
) -> Embedding:
    """Train VGG-11 and embed every image, going on from wherever the folder's files say that work stopped."""
    rows, about = folder / "embeddings.npy", folder / "about.json"
    if not about.exists():
        network = train_embedder(data, folder, schedule, report)
        facts = {"identity": _identity(data, schedule), "accuracy": _accuracy(network, data)}
        _embed(network, data, rows)
        write_atomically(about, (json.dumps(facts, indent=2) + "\n").encode())
    with reading(about, "remove it, and what it belongs to is made again"):
        facts = dict[str, Any](json.loads(about.read_text()))
        is_ours = facts["identity"] == _identity(data, schedule)
    if not is_ours:
        raise _belongs_elsewhere(about)
    with reading(rows, f"remove it and {about.name}, and it is made again"):
        return Embedding(map_npy(rows, "r"), float(facts["accuracy"]))


def train_embedder(
    data: DataSet,
    folder: Path,
    schedule: Schedule,
    report: Callable[[Progress], None] = lambda _: None,
    seconds_between_checkpoints: float = 150,
) -> Vgg11:
    """Train VGG-11 on a set's training images, going on from the folder's checkpoint if there is one."""
    network = _start(data, schedule)
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=0.0,
        momentum=schedule.momentum,
        nesterov=True,
        weight_decay=schedule.weight_decay,
        fused=True,
    )
    checkpoint = _Checkpoint(folder / "training.safetensors", _identity(data, schedule))
    done = checkpoint.load(network, optimiser)
    scale = Scale.of(data.train.inputs)
    steps_per_epoch = math.ceil(len(data.train) / schedule.batch_size)
    # A step's time grows with the number of pixels; this weighs the forecast.
    costs = [side**2 for side in schedule.sides for _ in range(steps_per_epoch)]
    meter = _Meter()
    saved_at = time.monotonic()
    network.train()
    for step in range(done, len(costs)):
        epoch, number = divmod(step, steps_per_epoch)
        order = torch.randperm(len(data.train), generator=stream(schedule.seed, "embedding", "order", epoch))
        batch = data.train.take(order[number * schedule.batch_size :][: schedule.batch_size])
        rng = stream(schedule.seed, "embedding", "augment", step)
        images = _augment(_channels_last(scale(batch.inputs)), schedule, schedule.sides[epoch], rng)
        logits = network(images)
        loss = functional.cross_entropy(logits, batch.labels, label_smoothing=schedule.label_smoothing)
        optimiser.zero_grad()
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate((step + 1) / (len(costs) + 1))
        optimiser.step()
        last = step + 1 == len(costs)
        meter.add(loss.detach(), logits.detach(), batch.labels, costs[step])
        if last or (step + 1) % _REPORT_EVERY == 0:
            report(meter.read(step + 1, costs))
        if last or time.monotonic() - saved_at > seconds_between_checkpoints:
            checkpoint.save(step + 1, network, optimiser)
            saved_at = time.monotonic()
    return network


@torch.no_grad()
def _accuracy(network: Vgg11, data: DataSet) -> float:
    network.eval()
    scale = Scale.of(data.train.inputs)
    right = sum(
        int((network(_channels_last(scale(batch.inputs))).argmax(1) == batch.labels).sum())
        for batch in data.test.batches(_SCORING_BATCH)
    )
    return right / len(data.test)


@torch.no_grad()
def _embed(network: Vgg11, data: DataSet, file: Path) -> None:
    network.eval()
    scale = Scale.of(data.train.inputs)
    part = file.with_suffix(".part")
    count = len(data.train) + len(data.test)
    rows = np.lib.format.open_memmap(part, "w+", dtype=np.float16, shape=(count, network.second.out_features))
    start = 0
    for examples in (data.train, data.test):
        for batch in examples.batches(_SCORING_BATCH):
            rows[start : start + len(batch)] = network.embed(_channels_last(scale(batch.inputs))).numpy()
            start += len(batch)
    rows.flush()
    part.replace(file)


def _start(data: DataSet, schedule: Schedule) -> Vgg11:
    channels, height, width = data.train.inputs.shape[1:]
    with layer_rng(stream(schedule.seed, "embedding", "weights")):
        network = vgg11((channels, height, width), data.num_classes)
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        # Small first logits keep the first steps at the full learning rate calm.
        nn.init.normal_(network.classifier.weight, std=0.01)
    # Torch's types lack this overload, which its documentation has.
    return network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _augment(images: Tensor, schedule: Schedule, side: int, rng: torch.Generator) -> Tensor:
    """Crop each image at its own random place, mirror half of them, and scale them to a side."""
    images = crop_and_flip(images, rng, schedule.padding, flip=schedule.flip, border="reflect")
    if (side, side) == images.shape[2:]:
        return images
    return functional.interpolate(images, (side, side), mode="bilinear", antialias=True)


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


class _Meter:
    """Sums up the steps between two reports."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.started = time.monotonic()
        self.loss, self.right, self.images, self.cost = 0.0, 0, 0, 0

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor, cost: int) -> None:
        self.loss += float(loss) * len(labels)
        self.right += int((logits.argmax(1) == labels).sum())
        self.images += len(labels)
        self.cost += cost

    def read(self, step: int, costs: list[int]) -> Progress:
        seconds_left = (time.monotonic() - self.started) / self.cost * sum(costs[step:])
        progress = Progress(step, len(costs), self.loss / self.images, self.right / self.images, seconds_left)
        self._clear()
        return progress


def _belongs_elsewhere(file: Path) -> InputError:
    return InputError(f"{file} belongs to other data or to another schedule: remove it, or choose another folder")


def _identity(data: DataSet, schedule: Schedule) -> str:
    return json.dumps({"data": data.fingerprint, "schedule": asdict(schedule)}, sort_keys=True)


@dataclass(frozen=True)
class _Checkpoint:
    """The one file that holds a training's weights, momentum and number of steps."""

    file: Path
    identity: str

    def save(self, step: int, network: Vgg11, optimiser: torch.optim.Optimizer) -> None:
        tensors = {f"weights/{name}": tensor for name, tensor in network.state_dict().items()}
        for name, parameter in network.named_parameters():
            tensors[f"momentum/{name}"] = optimiser.state[parameter]["momentum_buffer"]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        write_atomically(self.file, save(contiguous, {"step": str(step), "identity": self.identity}))

    def load(self, network: Vgg11, optimiser: torch.optim.Optimizer) -> int:
        """Put the state back and return the number of steps done."""
        if not self.file.exists():
            return 0
        remedy = "remove it, and training starts again"
        try:
            with reading(self.file, remedy):
                return self._load(network, optimiser)
        except SafetensorError as error:
            raise InputError(f"{self.file} is damaged ({error}): {remedy}") from error

    def _load(self, network: Vgg11, optimiser: torch.optim.Optimizer) -> int:
        with safe_open(self.file, "pt") as stored:
            if stored.metadata()["identity"] != self.identity:
                raise _belongs_elsewhere(self.file)
            network.load_state_dict({name: stored.get_tensor(f"weights/{name}") for name in network.state_dict()})
            for name, parameter in network.named_parameters():
                buffer = torch.empty_like(parameter).copy_(stored.get_tensor(f"momentum/{name}"))
                optimiser.state[parameter]["momentum_buffer"] = buffer
            return int(stored.metadata()["step"])
