"""HuggingFace's Trainer at every site, around a small BERT that is trained from scratch on made-up sentences.

Needs `pip install transformers accelerate`; `make examples-training` installs them and runs this file.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

import fedfomo

WORDS, LENGTH = 60, 12


class Bert(nn.Module):
    """Outputs are logits; inputs are a dict of token ids and mask."""

    def __init__(self) -> None:
        super().__init__()
        size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, num_labels=2, **size)
        self.bert = BertForSequenceClassification(config)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.bert(**inputs).logits


class WithPenalty(Trainer):
    """HuggingFace's Trainer, with what the method adds to the loss."""

    context: fedfomo.TrainContext

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        loss = super().compute_loss(*arguments, **named)
        return loss + self.context.penalty()


def collate(examples: list[Any]) -> dict[str, Tensor]:
    """Give BERT its dict, labels included."""
    inputs, labels = zip(*examples, strict=True)
    batch = {name: torch.stack([each[name] for each in inputs]) for name in inputs[0]}
    return {**batch, "labels": torch.stack(labels)}


def train(model: nn.Module, data: Dataset[Any], context: fedfomo.TrainContext) -> None:
    """The adapter: HuggingFace's Trainer trains the site's network in place."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=context.epochs,
            per_device_train_batch_size=context.batch_size,
            learning_rate=3e-3,
            seed=context.seed,
            use_cpu=context.device.type == "cpu",
            dataloader_pin_memory=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = WithPenalty(model.bert, arguments, data_collator=collate, train_dataset=data)
        trainer.context = context
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def sentences(size: int, key: int, rng: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Random words; the label is whether the site's key word is among them."""
    words = torch.randint(2, WORDS, (size, LENGTH), generator=rng)
    labels = torch.arange(size) % 2
    words[words == key] = 1
    words[labels == 1, 3] = key
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}, labels


def sites() -> dict[str, Any]:
    """Two pairs of sites: each pair has a key word."""
    rng = torch.Generator().manual_seed(0)
    keys = {"Bergen": 7, "Porto": 7, "Gdansk": 42, "Turin": 42}
    return {name: tuple(sentences(size, key, rng) for size in (200, 40, 40)) for name, key in keys.items()}


if __name__ == "__main__":
    logging.set_verbosity_error()
    trainer = fedfomo.OwnLoop(train, epochs=3, batch_size=20)
    result = fedfomo.federate(Bert, sites(), method="fedfomo", rounds=4, trainer=trainer, baselines=(), workers=0)
    print(result)
