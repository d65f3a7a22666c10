"""The device seam, as far as it can be tried without an accelerator.

The device "meta" has shapes and no values, and refuses what mixes it with host tensors: a whole training on it shows
that every tensor of a step is where the network is. What it cannot show is that the numbers are right.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from fedfomo import federate
from fedfomo.core.device import resolve_device, workers_on
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import layer_rng, stream
from fedfomo.core.trainer import Trainer
from fedfomo.errors import InputError
from toy_problems import perceptron, points, with_batch_norm

META = torch.device("meta")


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Model]:
    """Build models on meta: values enter a model by `Layout.flatten`, and leave it by `Model.read`, alone."""

    def build(make: Callable[[], nn.Module], **options: Any) -> Model:
        theta = torch.empty_like
        monkeypatch.setattr(Layout, "flatten", lambda layout, module: torch.zeros(layout.size))
        monkeypatch.setattr(Model, "read", lambda model: theta(model._theta))
        return Model(make().to(META), **options)

    return build


@pytest.mark.parametrize("build", [perceptron, with_batch_norm])
@pytest.mark.parametrize(
    "trainer",
    [
        Sgd(momentum=0.9, batch_size=5),
        Trainer(lambda params: AdamW(params, 0.1), CosineAnnealingLR, clip=1.0, batch_size=5),
        Trainer(lambda params: SGD(params, 0.1, momentum=0.9), batch_size=5, amp=True),
    ],
    ids=["sgd", "adamw", "amp"],
)
def test_no_tensor_of_a_training_stays_on_the_host(
    trainer: Any, build: Callable[[], nn.Module], on_meta: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "autocast", lambda kind, dtype: torch.amp.autocast_mode.autocast("cpu", dtype))
    model = on_meta(build)
    mask = torch.ones(model.layout.num_trainable, dtype=torch.bool)
    job = TrainingJob(torch.zeros(model.layout.size), points(12, 0, stream(0)), 0, stream(1), trainable_mask=mask)
    assert trainer.train(model, job).device == META


def test_a_loss_with_weights_moves_with_the_network(on_meta: Callable[..., Model]) -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.ones(3))
    model = on_meta(perceptron, loss=weighted)
    assert model.backward(points(4, 0, stream(0))).device == META
    assert weighted.weight.device.type == "cpu"


def test_a_stray_tensor_is_noticed(on_meta: Callable[..., Model]) -> None:
    class Stray(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * torch.ones(3)

    with pytest.raises(RuntimeError, match="device"):
        on_meta(lambda: Stray(2, 3)).backward(points(4, 0, stream(0)))


@pytest.mark.parametrize("name", ["meta", "nowhere", "cuda:99"])
def test_a_device_that_cannot_compute_here_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"device '{name}' cannot be used here .*choose cpu"):
        resolve_device(name)


def test_accelerators_take_no_worker_processes() -> None:
    cpu, other = torch.device("cpu"), torch.device("cuda")
    assert [workers_on(cpu, None, 4), workers_on(cpu, 2, 4), workers_on(other, None, 4), workers_on(other, 0, 4)] == [
        *(4, 2, 0, 0)
    ]
    with pytest.raises(InputError, match="2 workers cannot share cuda"):
        workers_on(other, 2, 4)


def test_the_cpu_may_be_named() -> None:
    sites = {
        name: tuple(points(12, place, stream(3, name, part)) for part in range(3)) for place, name in enumerate("ab")
    }
    results = [
        federate(perceptron, sites, rounds=1, baselines=(), workers=0, **device).models["a"].state_dict()  # type: ignore
        for device in ({}, {"device": "cpu"}, {"device": torch.device("cpu")})
    ]
    assert all(torch.equal(results[0][name], other[name]) for other in results[1:] for name in other)
    with pytest.raises(InputError, match="device 'meta' cannot be used here"):
        federate(perceptron, sites, rounds=1, device="meta")


def test_generators_are_left_as_they_were() -> None:
    before = torch.get_rng_state()
    with layer_rng(stream(0), torch.device("cpu")):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
