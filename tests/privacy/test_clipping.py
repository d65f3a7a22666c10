"""Gradients of single examples: right whatever the network, or refused."""

import pytest
import torch
from torch import Tensor, nn

from fedfomo.core.data import Examples
from fedfomo.core.model import Model, prefers_channels_last
from fedfomo.core.networks import small_cnn
from fedfomo.core.rng import layer_rng
from fedfomo.errors import InputError
from fedfomo.privacy.dp_sgd import clip_factors, clipped_sum, refuse_unfit
from toy_problems import gradient_at, initialised, perceptron, scalar_model, targets, with_batch_norm, with_dropout


def images(number: int) -> Examples:
    rng = torch.Generator().manual_seed(1)
    return Examples(torch.randn(number, 3, 32, 32, generator=rng), torch.randint(10, (number,), generator=rng))


def points(number: int) -> Examples:
    rng = torch.Generator().manual_seed(1)
    return Examples(torch.randn(number, 2, generator=rng), torch.randint(3, (number,), generator=rng))


def one_by_one(model: Model, examples: Examples, clip: float) -> Tensor:
    """Return the sum as its definition says it."""
    theta, total = model.read(), torch.zeros(model.layout.num_trainable)
    for n in range(len(examples)):
        gradient = gradient_at(model, theta, examples.take(torch.tensor([n])))
        total += gradient * min(1.0, clip / float(gradient.norm()))
    return total


def test_three_numbers_by_hand() -> None:
    # At x = 0 the losses (x − 1)², (x − 0.1)², (x + 3)² have gradients −2, −0.2 and 6; clipped at 1: −1, −0.2, 1.
    assert clipped_sum(scalar_model(), targets(1.0, 0.1, -3.0), 1.0).tolist() == pytest.approx([-0.2])
    # At 4: −2, −0.2, 4.
    assert clipped_sum(scalar_model(), targets(1.0, 0.1, -3.0), 4.0).tolist() == pytest.approx([1.8])


def test_nobody_contributes_more_than_the_clip() -> None:
    assert clip_factors(torch.tensor([0.0, 0.5, 1.0, 4.0]), 1.0).tolist() == [1.0, 1.0, 1.0, 0.25]


def test_a_record_that_is_not_finite_counts_as_nothing() -> None:
    model, examples = initialised(perceptron), points(6)
    inputs = examples.inputs.clone()
    inputs[2, 0] = torch.inf
    broken = Examples(inputs, examples.labels)
    others = examples.take(torch.tensor([0, 1, 3, 4, 5]))
    refuse_unfit(model, examples)
    torch.testing.assert_close(clipped_sum(model, broken, 1.0), clipped_sum(model, others, 1.0))


def test_the_sum_of_nobody_is_nothing() -> None:
    assert clipped_sum(initialised(perceptron), points(0), 1.0).abs().max() == 0


@pytest.mark.parametrize("clip", [0.05, 1.0, 1000.0])
def test_a_perceptrons_sum_is_that_of_its_examples(clip: float) -> None:
    model = initialised(perceptron)
    expected = one_by_one(model, points(7), clip)
    torch.testing.assert_close(clipped_sum(model, points(7), clip), expected, rtol=1e-4, atol=1e-6)


def test_channels_that_come_last_are_not_misread() -> None:
    # Opacus' own hooks, and its ghost clipping, are wrong here by a tenth of the gradient.
    with layer_rng(torch.Generator().manual_seed(0)):
        module = small_cnn((3, 32, 32), 10)
    model = Model(module, channels_last=prefers_channels_last(module, images(2).inputs))
    assert model.layout.channels_last
    expected = one_by_one(model, images(6), 0.5)
    torch.testing.assert_close(clipped_sum(model, images(6), 0.5), expected, rtol=1e-3, atol=1e-5)


class Odd(nn.Module):
    """A layer of its own kind, which expanded weights do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.inner(inputs)) * self.scale)


def test_layers_of_a_users_own_kind_work() -> None:
    model = initialised(Odd)
    torch.testing.assert_close(
        clipped_sum(model, points(5), 0.3), one_by_one(model, points(5), 0.3), rtol=1e-4, atol=1e-6
    )
    assert not any(hasattr(p, "grad_sample") for p in model.architecture.parameters())


class LooksAcross(nn.Module):
    """Takes the batch's mean off every input: an example's gradient depends on its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs - 0.5 * inputs.mean(dim=0))


class KeepsCount(nn.Module):
    """Remembers its inputs in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.seen += inputs.detach().sum(dim=0)
        return self.linear(inputs)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (with_batch_norm, "nn.GroupNorm in its place"),
        (LooksAcross, "depends on the examples beside it"),
        (KeepsCount, "keeps statistics"),
    ],
)
def test_networks_that_mix_examples_are_refused(build: type[nn.Module], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        refuse_unfit(initialised(build), points(6))


def test_a_loss_that_is_a_mean_is_refused() -> None:
    with pytest.raises(InputError, match="one value per example"):
        refuse_unfit(Model(perceptron(), lambda outputs, labels: outputs.logsumexp(1).mean()), points(6))


@pytest.mark.parametrize(
    "build",
    [
        perceptron,
        with_dropout,
        Odd,
        lambda: nn.Sequential(nn.Linear(2, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 3)),
    ],
)
def test_networks_that_keep_examples_apart_are_fit(build: type[nn.Module]) -> None:
    model = initialised(build)
    before = model.read()
    refuse_unfit(model, points(6))
    assert torch.equal(model.read(), before)
    assert all(layer.training for layer in model.architecture.modules())
