"""Settings that cannot be carried out are refused where they are given."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedfomo.core.data import Examples
from fedfomo.core.device import available_cores
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.own_loop import OwnLoop
from fedfomo.core.rng import stream
from fedfomo.core.trainer import Trainer
from fedfomo.core.vectorised import Stack
from fedfomo.errors import InputError
from toy_problems import initialised, perceptron, points


def loop(model: Any, data: Any, context: Any) -> None:
    """Train nothing."""


@pytest.mark.parametrize("name", ["epochs", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 2.5, 16.0, True, "5"])
def test_counts_are_whole_numbers_for_every_trainer(name: str, value: Any) -> None:
    trainers: list[Callable[..., object]] = [
        Sgd,
        lambda **given: OwnLoop(loop, **given),
        lambda **given: Trainer(lambda parameters: torch.optim.SGD(parameters, 0.1), **given),
    ]
    for trainer in trainers:
        with pytest.raises(InputError, match=f"{name} must be a whole number of at least 1, not"):
            trainer(**{name: value})


def test_no_epochs_are_none_and_not_the_trainers() -> None:
    model, sgd = initialised(perceptron), Sgd(batch_size=5, epochs=3)
    own = Trainer(lambda parameters: torch.optim.SGD(parameters, 0.1))

    def job(epochs: int) -> TrainingJob:
        return TrainingJob(model.read(), points(12, 0, stream(0)), 0, stream(1), epochs=epochs)

    start = model.read()
    assert torch.equal(sgd.train(model, job(0)), start)
    assert torch.equal(own.train(model, job(0)), start)
    still, moved = Stack(model).train(sgd, [job(0), job(2)])
    assert torch.equal(still, start)
    torch.testing.assert_close(moved, sgd.train(model, job(2)), rtol=1e-4, atol=1e-5)


def test_amp_and_precision_do_not_contradict_each_other() -> None:
    plain = Trainer(lambda parameters: torch.optim.SGD(parameters, 0.1))
    assert replace(plain, amp=True).autocasts
    assert replace(plain, amp=True, precision="bf16").autocasts
    assert replace(plain, precision="bf16").autocasts
    assert not replace(plain, precision="float32").autocasts
    assert repr(replace(plain, precision="float32")) == repr(plain)
    with pytest.raises(InputError, match="amp=True computes in bfloat16, and precision says float32"):
        replace(plain, amp=True, precision="float32")


def test_workers_are_as_many_as_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert available_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cores() == 64


class NoDoublesOnDevices(TorchFunctionMode):
    """Refuses to widen a tensor that was not brought to main memory first, as devices without float64 do."""

    def __init__(self) -> None:
        super().__init__()
        self.home: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not Tensor.double or any(args[0] is tensor for tensor in self.home)
        result = func(*args, **(kwargs or {}))
        if func is Tensor.cpu:
            self.home.append(result)
        return result


def test_scores_are_summed_in_main_memory() -> None:
    model, examples = initialised(perceptron), points(6, 0, stream(0))
    pairs: list[tuple[Tensor, Examples]] = [(model.read(), examples), (model.read(), points(3, 1, stream(1)))]
    with NoDoublesOnDevices():
        score = model.score(*pairs[0])
        model.figures(*pairs[0])
        model.metrics.measure(model.outputs(*pairs[0]), examples.labels)
        stacked = Stack(model).score(pairs)
    assert stacked[0].loss == pytest.approx(score.loss, rel=1e-5)
