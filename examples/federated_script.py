"""The training script beside this file as a federation: four offices, a report, and a model for each.

Run `python examples/training_script.py` first, which writes the images; then

    python examples/federated_script.py
"""

import torch
from training_script import OFFICES, Mail, auc, augment, make_model

import fedfomo

if __name__ == "__main__":
    sites = {name: (Mail(f"mail/{name}/train", augment), Mail(f"mail/{name}/target")) for name in OFFICES}
    trainer = fedfomo.Trainer(lambda params: torch.optim.AdamW(params, 1e-3), epochs=2, batch_size=16)
    result = fedfomo.federate(make_model, sites, trainer=trainer, metrics={"auc": auc}, device="cpu")  # or "cuda"
    print(result)
    print("The report:", result.report("report.html"))
