"""The papers' architectures.

Every builder takes the shape of one input (channels, height, width) and the number of classes, and returns a
module for batches of channels-first images that ends in one logit per class.
"""

from collections.abc import Callable
from math import prod

from torch import Tensor, nn
from torch.nn import functional

from fedfomo.errors import InputError

Shape = tuple[int, ...]
Builder = Callable[[Shape, int], nn.Module]

_EMBEDDING_WIDTH = 4096
_MCMAHAN_SMALLEST = 4
_VGG11_WIDTHS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def mlp(shape: Shape, num_classes: int) -> nn.Module:
    """Build a perceptron with one hidden layer of 64 units, for inputs of any shape."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, num_classes))


def small_cnn(shape: Shape, num_classes: int) -> nn.Module:
    """Build the convolutional network that FedFomo's authors trained (Zhang et al., 2021)."""
    channels, height, width = _image(shape, "small_cnn", smallest=18)
    # Pooling drops a last odd row and column, so some pixels at the lower and right edge decide nothing: the same
    # function is faster without them. ReLU and max-pooling commute; pooling first leaves ReLU a quarter of the work.
    return nn.Sequential(
        nn.ZeroPad2d((0, _small_cnn_reads(width) - width, 0, _small_cnn_reads(height) - height)),
        nn.Conv2d(channels, 32, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * _small_cnn_side(height) * _small_cnn_side(width), 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )


def mcmahan_cnn(shape: Shape, num_classes: int) -> nn.Module:
    """Build the convolutional network of FedAvg's MNIST experiments (McMahan et al., 2017)."""
    channels, height, width = _image(shape, "mcmahan_cnn", smallest=_MCMAHAN_SMALLEST)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding="same"),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding="same"),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, num_classes),
    )


class Vgg11(nn.Module):
    """VGG-11 with BatchNorm (Simonyan and Zisserman, 2015), sized for small images."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, widths in enumerate(_VGG11_WIDTHS):
            if number:
                # Rounding up lets images below 32 × 32 reach the last convolutions with 2 × 2 pixels too.
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
            for width in widths:
                layers += [
                    nn.Conv2d(channels, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
        self.features = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.first = nn.Linear(channels, _EMBEDDING_WIDTH)
        self.second = nn.Linear(_EMBEDDING_WIDTH, _EMBEDDING_WIDTH)
        self.classifier = nn.Linear(_EMBEDDING_WIDTH, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Return the second fully connected layer's activations, before their ReLU."""
        return self.second(functional.relu(self.first(self.features(images))))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        return self.classifier(functional.relu(self.embed(images)))


def vgg11(shape: Shape, num_classes: int) -> Vgg11:
    """Build VGG-11 with BatchNorm for small images."""
    channels, _, _ = _image(shape, "vgg11", smallest=1)
    return Vgg11(channels, num_classes)


NETWORKS: dict[str, Builder] = {
    "mlp": mlp,
    "small_cnn": small_cnn,
    "mcmahan_cnn": mcmahan_cnn,
    "vgg11": vgg11,
}


def _image(shape: Shape, network: str, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise InputError(
            f"network {network} reads images (channels, height, width), but the inputs have shape {shape}: "
            "choose 'mlp', or give the inputs that shape"
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        fitting = "'mlp', 'mcmahan_cnn' or 'vgg11'" if min(height, width) >= _MCMAHAN_SMALLEST else "'mlp' or 'vgg11'"
        raise InputError(
            f"network {network} needs images of at least {smallest}×{smallest}, but these are {height}×{width}: "
            f"choose {fitting}"
        )
    return channels, height, width


def _small_cnn_side(side: int) -> int:
    """Return the rows that its last convolution leaves of so many."""
    return ((side - 2) // 2 - 2) // 2 - 2


def _small_cnn_reads(side: int) -> int:
    """Return how many of the rows any output depends on."""
    return ((_small_cnn_side(side) + 2) * 2 + 2) * 2 + 2
