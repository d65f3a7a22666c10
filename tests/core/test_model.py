"""Loss, gradient and accuracy as functions of θ."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fedfomo.core import model as model_module
from fedfomo.core.data import Examples
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model, Score, accuracy, prefers_channels_last
from fedfomo.core.rng import stream
from toy_problems import (
    Scalar,
    gradient_at,
    initialised,
    perceptron,
    point,
    points,
    scalar_model,
    targets,
    with_batch_norm,
    with_dropout,
)


def test_the_loss_of_a_number_is_the_mean_square_of_its_gaps() -> None:
    # ((3 − 1)² + (3 − 7)²)/2.
    assert scalar_model().loss(point(3), targets(1, 7)) == (4 + 16) / 2


@pytest.mark.parametrize("per_example", [True, False])
def test_the_loss_is_the_mean_over_examples_and_not_over_batches(
    per_example: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "EVALUATION_BATCH", 50)
    # Batches of 50, 50 and 33 whose means are 1, 2 and 4: the mean of these means would be 7/3.
    labels = torch.cat((torch.full((50,), 1.0), torch.full((50,), 2.0), torch.full((33,), 4.0)))

    def gap(outputs: Tensor, labels: Tensor) -> Tensor:
        losses = (outputs - labels).abs()
        return losses if per_example else losses.mean()

    model = Model(Scalar(), gap, gap)
    score = model.score(point(0), Examples(torch.zeros(133, 1), labels))
    expected = (50 * 1 + 50 * 2 + 33 * 4) / 133
    assert score.loss == pytest.approx(expected, abs=1e-12)
    assert score.num_examples == 133


def test_the_size_of_evaluation_batches_changes_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, examples = initialised(perceptron), points(101, 0, stream(0))
    whole = model.score(model.read(), examples)
    monkeypatch.setattr(model_module, "EVALUATION_BATCH", 7)
    pieces = model.score(model.read(), examples)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert pieces.metric == whole.metric


def test_accuracy_counts_the_largest_output() -> None:
    outputs = torch.tensor([[1.0, 2.0, 0.0], [5.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
    assert accuracy(outputs, torch.tensor([1, 0, 1, 1])).tolist() == [1.0, 1.0, 0.0, 1.0]


def test_no_examples_have_no_score() -> None:
    score = scalar_model().score(point(3), targets())
    assert math.isnan(score.loss)
    assert math.isnan(score.metric)
    assert score.num_examples == 0


def test_a_perfect_model_scores_perfectly() -> None:
    assert scalar_model().score(point(5), targets(5, 5)) == Score(0.0, 0.0, 2)


def test_the_gradient_is_that_of_the_mean_loss() -> None:
    # d/dx ((x − 1)² + (x − 7)²)/2 = (x − 1) + (x − 7) at 3: 2 − 4.
    assert gradient_at(scalar_model(), point(3), targets(1, 7)).tolist() == [-2.0]


def test_gradients_equal_autograds_and_do_not_add_up() -> None:
    model, examples = initialised(perceptron), points(10, 0, stream(0))
    theta = model.read() + 0.1
    net = perceptron()
    net.load_state_dict(model.state_dict(theta))
    nn.functional.cross_entropy(net(examples.inputs), examples.labels).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])  # type: ignore[union-attr]
    first = gradient_at(model, theta, examples)
    assert torch.equal(first, expected)
    assert torch.equal(gradient_at(model, theta, examples), expected)


def test_nobodys_vector_is_written_to() -> None:
    model, examples = initialised(with_batch_norm), points(10, 0, stream(0))
    theta = model.read()
    kept = theta.clone()
    model.score(theta, examples)
    gradient_at(model, theta, examples)
    model.state_dict(theta)
    live = model.load(theta)
    live.add_(1)
    assert torch.equal(theta, kept)


def test_loaded_coordinates_are_live_and_read_ones_are_copies() -> None:
    model = scalar_model()
    live = model.load(point(3))
    live.mul_(2)
    out = model.read()
    assert out.tolist() == [6.0]
    live.mul_(2)
    assert out.tolist() == [6.0]


def test_theta_loads_into_a_fresh_module() -> None:
    model, examples = initialised(with_batch_norm), points(20, 0, stream(0))
    theta = model.read() + 0.25
    fresh = with_batch_norm()
    fresh.load_state_dict(model.state_dict(theta))
    fresh.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(fresh(examples.inputs), examples.labels).item()
    assert loss == pytest.approx(model.loss(theta, examples), rel=1e-6)
    assert torch.equal(Model(fresh).read(), theta)


def test_a_state_dict_is_a_copy() -> None:
    model = scalar_model()
    state = model.state_dict(point(3))
    model.load(point(8))
    assert state["x"].tolist() == [3.0]


def test_many_models_in_one_state_dict_are_those_of_each() -> None:
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    normed = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for model in (Model(plain), Model(tied), Model(normed, channels_last=True)):
        thetas = torch.stack([model.read() + n for n in range(3)])
        stacked = model.stacked_state_dict(thetas)
        for n, theta in enumerate(thetas):
            alone = model.state_dict(theta)
            assert list(stacked) == list(alone)
            assert all(torch.equal(stacked[name][n], tensor) for name, tensor in alone.items())


def test_scoring_switches_dropout_off_and_running_statistics_on() -> None:
    examples = points(20, 0, stream(0))
    model = initialised(with_dropout)
    assert model.loss(model.read(), examples) == model.loss(model.read(), examples)
    normed = initialised(with_batch_norm)
    theta = normed.read()
    normed.score(theta, examples)
    assert torch.equal(normed.read(), theta)  # statistics were used and not updated


def test_training_mode_moves_running_statistics() -> None:
    model, examples = initialised(with_batch_norm), points(20, 0, stream(0))
    theta = model.read()
    model.load(theta)
    model.backward(examples)
    trainable = model.layout.num_trainable
    assert torch.equal(model.read()[:trainable], theta[:trainable])
    assert not torch.equal(model.read()[trainable:], theta[trainable:])


def test_running_statistics_follow_their_formula() -> None:
    # Momentum 0.1: mean 0.9 · 0 + 0.1 · 3; variance 0.9 · 1 + 0.1 · 2, the unbiased one of 2 and 4.
    norm = nn.BatchNorm1d(1)
    model = Model(norm, lambda outputs, labels: outputs.square().mean(), lambda outputs, labels: outputs[:, 0])
    model.load(model.read())
    model.backward(Examples(torch.tensor([[2.0], [4.0]]), torch.zeros(2)))
    assert model.layout.views(model.read())["running_mean"].tolist() == pytest.approx([0.3])
    assert model.layout.views(model.read())["running_var"].tolist() == pytest.approx([1.1])
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 1
    model.load(model.read())
    assert norm.num_batches_tracked.item() == 0  # counters start afresh with every θ


def test_a_batch_of_one_passes_through_batch_norm_without_touching_its_statistics() -> None:
    model, examples = initialised(with_batch_norm), points(1, 0, stream(0))
    theta = model.read()
    gradient = gradient_at(model, theta, examples)
    assert bool(torch.isfinite(gradient).all())
    assert torch.equal(model.read(), theta)
    model.backward(points(5, 0, stream(0)))
    assert not torch.equal(model.read(), theta)  # and larger batches go on as before


def test_integer_buffers_are_kept_as_they_were_given() -> None:
    module = nn.BatchNorm1d(2)
    assert module.num_batches_tracked is not None
    module.num_batches_tracked.fill_(7)
    model = Model(module, lambda outputs, labels: outputs.square().mean(), lambda outputs, labels: outputs[:, 0])
    gradient_at(model, model.read(), Examples(torch.randn(4, 2), torch.zeros(4)))
    state = model.state_dict(model.read())
    assert state["num_batches_tracked"].item() == 7
    assert state["num_batches_tracked"].dtype == torch.int64


def test_tied_weights_stay_tied() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    model = Model(module)
    live = model.load(model.read())
    live.fill_(3)
    assert module[0].weight is module[1].weight
    assert module[1].weight.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    state = model.state_dict(model.read())
    assert torch.equal(state["0.weight"], state["1.weight"])


def test_frozen_parameters_do_not_move_and_get_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    model = Model(module)
    assert len(gradient_at(model, model.read(), points(5, 0, stream(0)))) == 4 * 3 + 3
    assert model.read().numel() == 4 * 3 + 3


def test_a_buffer_that_a_layer_replaces_is_read_back() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                self.seen = self.seen + len(inputs)  # a new tensor, not a view of θ
            return self.x.expand(len(inputs))

    model = scalar_model(Counting())
    model.load(point(1, 10))
    model.backward(targets(0, 0, 0))
    assert model.read().tolist() == [1.0, 13.0]
    model.load(point(1, 20))
    model.backward(targets(0, 0))
    assert model.read().tolist() == [1.0, 22.0]


def test_a_parameter_that_the_loss_does_not_use_has_a_gradient_of_zero() -> None:
    class HalfUsed(Scalar):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.ones(2))

    model = scalar_model(HalfUsed())
    assert gradient_at(model, point(3, 1, 1), targets(1)).tolist() == [4.0, 0.0, 0.0]


class _Viewing(nn.Module):
    """A network that relies on the order of its feature maps in memory, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 3)
        self.head = nn.Linear(3 * 4, 2)

    def forward(self, images: Tensor) -> Tensor:
        features = self.convolution(images)
        return self.head(features.view(len(features), -1))


def test_only_convolutions_that_do_not_mind_run_with_channels_last() -> None:
    images = torch.randn(5, 2, 4, 4)
    convolutions = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    assert prefers_channels_last(convolutions, images)
    assert not prefers_channels_last(_Viewing(), images)
    assert not prefers_channels_last(nn.Sequential(nn.Flatten(), nn.Linear(32, 2)), images)
    assert not prefers_channels_last(convolutions, torch.randn(5, 32))
    assert convolutions[0].weight.is_contiguous()  # the trial was on a copy


def test_channels_last_changes_the_order_in_memory_and_not_the_model() -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    examples = Examples(torch.randn(30, 2, 4, 4), torch.arange(30) % 2)
    usual = Model(copy.deepcopy(module))
    last = Model(copy.deepcopy(module), channels_last=True)
    assert last.state_dict(last.read()).keys() == usual.state_dict(usual.read()).keys()
    for model in (usual, last):
        trained = Sgd(epochs=2, batch_size=7).train(model, TrainingJob(model.read(), examples, 0, stream(0)))
        fresh = copy.deepcopy(module)
        fresh.load_state_dict(model.state_dict(trained))
        torch.testing.assert_close(Model(fresh).loss(Model(fresh).read(), examples), model.loss(trained, examples))
    ours, theirs = (gradient_at(m, m.read(), examples) for m in (usual, last))
    torch.testing.assert_close(ours.norm(), theirs.norm())
