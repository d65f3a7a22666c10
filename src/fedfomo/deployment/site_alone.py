"""Training alone beside the federation, in a process of its own: what federating is measured against, at the site.

It starts from the initial model of the federation, trains as often and in the same way, and is tested on the same
records. It takes nothing from others, and nothing of it leaves.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save

from fedfomo.algorithms import make_algorithm
from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.device import resolve_device
from fedfomo.core.local_training import Sgd
from fedfomo.core.messages import Flat
from fedfomo.deployment.settings import (
    DATA_VARIABLE,
    DEVICE_VARIABLE,
    EXPERIMENT_VARIABLE,
    SITE_VARIABLE,
    THREADS_VARIABLE,
    SiteFolder,
)
from fedfomo.deployment.site_records import examined
from fedfomo.deployment.site_report import conclude
from fedfomo.deployment.site_state import SiteMemory
from fedfomo.deployment.subprocesses import ends_in_one_line
from fedfomo.deployment.user_model import load_model, load_own_data
from fedfomo.io import read_json, to_json, write_atomically
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

log = logging.getLogger(__name__)


def train_alone(site: SiteFolder, data: Path | None) -> None:
    """Train as the federation's requests say, and keep model and scores in the site's folder."""
    asked = read_json(site.asked, "it is written anew with the next request")
    known: Flat = SiteMemory(site.memory).initial() or {}
    device = resolve_device(os.environ.get(DEVICE_VARIABLE, "cpu"))
    own = load_model(site.model, asked["seed"], asked["channels_last"], device)
    examples = load_own_data(site.data, data, site.card().name, asked["seed"], own)
    trainer = own.trainer or Sgd(**asked["training"])
    common = known.get("theta", own.initial)
    initial = common if common.shape == own.initial.shape else own.initial  # where only a part of the model travels
    problem = FederatedProblem(own.model, initial, [examples], trainer, asked["seed"])
    ended = simulate(problem, make_algorithm("local"), SimulationConfig(asked["rounds"]))
    theta = ended.models[0]
    site.alone.mkdir(mode=0o700, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in own.model.state_dict(theta).items()}
    write_atomically(site.alone / "model.safetensors", save(state))
    facts = {
        "rounds": asked["rounds"],
        "score": own.model.score(theta, examples.test).as_dict(),
        **examined(own.model, theta, examples.test),
        "training": None if own.trainer else asdict(Sgd(**asked["training"])),
    }
    write_atomically(site.alone / "result.json", to_json(facts).encode())


def main() -> None:
    """Train alone as the latest experiment does, at the lowest priority."""
    site = SiteFolder(Path(os.environ[SITE_VARIABLE]), os.environ.get(EXPERIMENT_VARIABLE, ""))
    data = os.environ.get(DATA_VARIABLE)
    os.nice(19)
    torch.set_num_threads(int(os.environ.get(THREADS_VARIABLE, "1")))
    form = "%(asctime)s %(levelname)s alone: %(message)s"
    logging.basicConfig(filename=site.path / "site.log", level=logging.INFO, format=form)
    log.info("training alone beside the federation")
    with one_torch_thread():
        train_alone(site, Path(data) if data else None)
    log.info("trained alone")
    sentence = conclude(site)
    if sentence is not None:
        sys.stdout.write(f"{site.card().name}: {sentence}\n")


if __name__ == "__main__":
    with ends_in_one_line():
        main()
