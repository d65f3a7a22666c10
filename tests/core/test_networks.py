import pytest
import torch

from fedfomo.core import networks
from fedfomo.core.networks import NETWORKS
from fedfomo.errors import InputError


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "expected"),
    [
        # conv 896 + 18,496 + 36,928, then 64·1024+64, then 64·10+10
        ("small_cnn", (3, 32, 32), 10, 122_570),
        ("small_cnn", (3, 32, 32), 100, 128_420),
        ("small_cnn", (1, 28, 28), 10, 93_322),
        ("mcmahan_cnn", (1, 28, 28), 10, 1_663_370),
        # eight convolutions 9,217,728 without biases, BatchNorm 5,504, then 513·4096 + 4097·4096 + 4097·10
        ("vgg11", (3, 32, 32), 10, 28_146_762),
        # 65·64 + 65·64 + 65·10
        ("mlp", (1, 8, 8), 10, 4_810),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], num_classes: int, expected: int) -> None:
    network = NETWORKS[name](shape, num_classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 20, 36)])
def test_one_logit_per_class(name: str, shape: tuple[int, ...]) -> None:
    network = NETWORKS[name](shape, 7)
    assert network(torch.rand(2, *shape)).shape == (2, 7)


def test_vgg11_classifies_from_its_embedding() -> None:
    network = networks.vgg11((3, 32, 32), 10).eval()
    images = torch.rand(2, 3, 32, 32)
    embedding = network.embed(images)
    assert embedding.shape == (2, 4096)
    assert embedding.min() < 0  # before the ReLU
    torch.testing.assert_close(network(images), network.classifier(embedding.relu()))


def test_the_mlp_reads_what_is_not_an_image() -> None:
    assert networks.mlp((5,), 2)(torch.rand(3, 5)).shape == (3, 2)


@pytest.mark.parametrize("name", ["small_cnn", "mcmahan_cnn", "vgg11"])
def test_convolutions_need_images(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} reads images .* choose 'mlp'"):
        NETWORKS[name]((64,), 10)


def test_too_small_an_image_is_refused_with_what_fits() -> None:
    with pytest.raises(InputError, match="at least 18×18, but these are 8×8: choose 'mlp', 'mcmahan_cnn' or 'vgg11'"):
        NETWORKS["small_cnn"]((1, 8, 8), 10)
    NETWORKS["small_cnn"]((1, 18, 18), 10)(torch.rand(1, 1, 18, 18))
    with pytest.raises(InputError, match="at least 4×4, but these are 3×9: choose 'mlp' or 'vgg11'"):
        NETWORKS["mcmahan_cnn"]((1, 3, 9), 10)


@pytest.mark.parametrize("sides", [(32, 32), (28, 28), (26, 19), (20, 21), (64, 23)])
def test_the_small_cnn_leaves_out_only_what_pooling_would_drop(sides: tuple[int, int]) -> None:
    network = networks.small_cnn((3, *sides), 10)
    images = torch.rand(2, 3, *sides)
    whole = torch.nn.Sequential(*list(network.children())[1:])
    torch.testing.assert_close(network(images), whole(images))
