"""Three clinics predict how diabetes progresses, from .csv files with words and numbers: a regression.

The 442 patients ship with scikit-learn. Delft has records of younger patients and is going to treat older ones. Run
it with

    python examples/diabetes_tables.py

It writes the tables to `clinics/`, trains, and writes `diabetes_report.html`. `fedfomo check clinics --labels numbers`
validates the tables first.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from sklearn import datasets
from torch import nn

import fedfomo

CLINICS = {"Aachen": ("older", "older", 60), "Bruges": ("younger", "younger", 60), "Delft": ("younger", "older", 40)}
TARGET = 70  # records that choose models and test them, half and half


def write_tables(folder: Path) -> None:
    """Write each clinic's training and target table; no patient is in two of them."""
    data = datasets.load_diabetes(scaled=False)
    age = data.data[:, data.feature_names.index("age")]
    order = np.random.default_rng(0).permutation(len(age))
    left = {
        kind: [row for row in order if (age[row] > np.median(age)) == (kind == "older")]
        for kind in ("older", "younger")
    }
    for name, (own, aim, number) in CLINICS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, kind, size in (("train", own, number), ("target", aim, TARGET)):
            rows, left[kind] = left[kind][:size], left[kind][size:]
            with (folder / name / f"{part}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([*data.feature_names, "label"])
                for row in rows:
                    values = dict(zip(data.feature_names, data.data[row], strict=True))
                    values["sex"] = "female" if values["sex"] == 1 else "male"
                    writer.writerow([*values.values(), data.target[row] / 100])


def make_model() -> nn.Module:
    """Return a small network; `sex` becomes two columns, so that there are eleven."""
    return nn.Sequential(nn.Linear(11, 16), nn.ReLU(), nn.Linear(16, 1))


if __name__ == "__main__":
    write_tables(Path("clinics"))
    sites = fedfomo.load_sites("clinics", labels="numbers", standardise=True)
    trainer = fedfomo.Sgd(learning_rate=0.02, batch_size=10)
    result = fedfomo.federate(make_model, sites, loss="regression", trainer=trainer, rounds=10)
    print(result)
    print("The report:", result.report("diabetes_report.html"))
