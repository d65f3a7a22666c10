"""A LightningModule at every site: its own training_step and optimiser, and a federation around them.

Needs `pip install lightning`; `make examples-training` installs it and runs this file.
"""

import logging
import warnings
from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fedfomo


class Digits(lightning.LightningModule):
    """Any LightningModule whose forward() gives the outputs that it is tested by."""

    context: fedfomo.TrainContext | None = None

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels, label_smoothing=0.1)
        return loss if self.context is None else loss + self.context.penalty()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 3e-3)


def train(model: nn.Module, data: Dataset[Any], context: fedfomo.TrainContext) -> None:
    """The adapter: Lightning trains the site's network in place."""
    model.context = context
    trainer = lightning.Trainer(
        max_epochs=context.epochs,
        accelerator="auto" if context.device.type != "cpu" else "cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, context.batch_size, shuffle=True))


def sites() -> dict[str, Any]:
    """Four sites with some digits each, of which two see every image upside down."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = {}
    for name, chosen in zip(("Bergen", "Porto", "Gdansk", "Turin"), order.split(150), strict=False):
        turned = images[chosen].flip(1) if name in ("Gdansk", "Turin") else images[chosen]
        inputs = turned.flatten(1)
        cuts = slice(0, 90), slice(90, 120), slice(120, 150)
        parts[name] = tuple((inputs[cut], labels[chosen][cut]) for cut in cuts)
    return parts


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    trainer = fedfomo.OwnLoop(train, epochs=5, batch_size=20)
    result = fedfomo.federate(Digits, sites(), method="fedfomo", rounds=6, trainer=trainer, workers=0)
    print(result)
    print(result.report("lightning_sites.html"))
