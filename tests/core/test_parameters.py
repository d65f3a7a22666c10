"""θ and the tensors that are pieces of it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedfomo.core.parameters import Layer, Layout
from fedfomo.errors import InputError


def batch_norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))


def test_trainable_coordinates_come_first_and_buffers_behind_them() -> None:
    layout = Layout.of(batch_norm_net())
    assert [(slot.name, slot.start, slot.stop) for slot in layout.slots] == [
        ("0.weight", 0, 6),
        ("0.bias", 6, 9),
        ("1.weight", 9, 12),
        ("1.bias", 12, 15),
        ("2.weight", 15, 18),
        ("1.running_mean", 18, 21),
        ("1.running_var", 21, 24),
    ]
    assert layout.num_trainable == 18
    assert layout.size == 24


def test_integer_and_boolean_buffers_stay_out() -> None:
    module = nn.Linear(1, 1)
    module.register_buffer("count", torch.tensor(3))
    module.register_buffer("mask", torch.tensor([True, False]))
    assert [slot.name for slot in Layout.of(module).slots] == ["weight", "bias"]


def test_frozen_parameters_stay() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    layout = Layout.of(module)
    assert [slot.name for slot in layout.slots] == ["1.weight", "1.bias"]
    assert (layout.num_trainable, layout.size) == (3, 3)


def test_tied_weights_have_one_place() -> None:
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    layout = Layout.of(module)
    assert [slot.name for slot in layout.slots] == ["0.weight"]
    assert layout.size == 4


def test_pieces_share_the_memory_of_theta() -> None:
    layout = Layout.of(batch_norm_net())
    theta = torch.arange(24.0)
    views = layout.views(theta)
    assert views["0.weight"].tolist() == [[0, 1], [2, 3], [4, 5]]
    views["1.running_var"][0] = -7
    assert theta[21].item() == -7


def test_flattening_copies() -> None:
    module = batch_norm_net()
    layout = Layout.of(module)
    theta = layout.flatten(module)
    assert theta.dtype == torch.float32
    assert not theta.requires_grad
    theta.zero_()
    assert module[0].weight.abs().sum().item() > 0


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=5))
def test_what_is_laid_out_comes_back(shapes: list[list[int]]) -> None:
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    layout = Layout.of(nn.ParameterList(parameters))
    assert layout.size == layout.num_trainable == sum(p.numel() for p in parameters)
    views = layout.views(layout.flatten(nn.ParameterList(parameters)))
    for index, parameter in enumerate(parameters):
        assert torch.equal(views[str(index)], parameter.detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_other_kinds_of_numbers_are_refused_with_the_way_out(dtype: torch.dtype) -> None:
    module = nn.ParameterDict({"w": nn.Parameter(torch.zeros(1, dtype=dtype))})
    with pytest.raises(InputError, match=rf"'w' is {dtype}: models are float32 here, call \.float\(\) on yours"):
        Layout.of(module)


def test_a_double_buffer_is_refused_by_its_name() -> None:
    module = nn.Linear(1, 1)
    module.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    with pytest.raises(InputError, match=r"'scale' is torch\.float64"):
        Layout.of(module)


def test_a_module_that_cannot_learn_is_refused() -> None:
    with pytest.raises(InputError, match="Flatten has no trainable parameter"):
        Layout.of(nn.Flatten())
    with pytest.raises(InputError, match="Linear has no trainable parameter"):
        Layout.of(nn.Linear(1, 1).requires_grad_(False))


def test_layers_are_the_modules_that_own_parameters() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sequential(nn.Flatten(), nn.Linear(8, 3)))
    layout = Layout.of(module)
    assert layout.layers() == (Layer("0", True), Layer("1", False), Layer("2.1", False))
    assert layout.mask(layout.layers()[1:2]).sum() == 2 + 2 + 2 + 2  # weight, bias, running mean and variance
    assert layout.mask(layout.layers()).all()


def test_a_submodules_coordinates_come_in_its_own_order() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    outer = nn.ModuleDict({"first": inner, "second": nn.Linear(2, 2)})
    theta = torch.arange(float(Layout.of(outer).size))
    own = theta[Layout.of(outer).coordinates_below("first")]
    views, whole = Layout.of(inner).views(own), Layout.of(outer).views(theta)
    for name, piece in views.items():
        assert torch.equal(piece, whole[f"first.{name}"])
