"""A federation whose model.py brings a trainer and keeps a part: the sites' models are those of the simulator."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedfomo.algorithms import make_algorithm
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.deployment.user_model import load_model, load_own_data
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from in_memory_transport import MODEL, make_federation, run_federation

TRAINER = """
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from fedfomo import Trainer

trainer = Trainer(lambda params: AdamW(params, 0.01), CosineAnnealingLR, epochs=2, batch_size=5, keep_state=True)
keep = ["2.*"]
"""

LOOP = """
def trainer(model, data, context):
    for inputs, labels in context.batches():
        model.zero_grad()
        context.loss(model(inputs), labels).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad


import torch
"""


def with_trainer(place: Path, trainer: str, **settings: object) -> FederationFolder:
    folder = make_federation(place, rounds=3, **settings)
    for model in (folder.model, *(SiteFolder(folder.sites / site.name).model for site in folder.registry())):
        model.write_text(MODEL + trainer)
    return folder


def simulated(folder: FederationFolder, method: str) -> dict[str, dict[str, torch.Tensor]]:
    own = load_model(folder.model, folder.config().seed)
    assert own.trainer is not None
    members = sorted(folder.registry(), key=lambda site: site.slot)
    data = [load_own_data(SiteFolder(folder.sites / m.name).data, None, m.name, 0, own) for m in members]
    problem = FederatedProblem(own.model, own.initial, data, own.trainer, folder.config().seed, keep=tuple(own.keep))
    models = simulate(problem, make_algorithm(method), SimulationConfig(3, vectorise=False)).models
    return {member.name: own.model.state_dict(models[client]) for client, member in enumerate(members)}


@pytest.mark.parametrize(("method", "trainer"), [("fedfomo", TRAINER), ("fedbn", TRAINER), ("fedavg", LOOP)])
def test_sites_train_as_the_simulator_does(method: str, trainer: str, tmp_path: Path) -> None:
    folder = with_trainer(tmp_path, trainer, method=method)
    models, expected = run_federation(folder), simulated(folder, method)
    assert models.keys() == expected.keys()
    for site, state in models.items():
        assert all(torch.equal(state[name], expected[site][name]) for name in state), site


def test_a_method_that_needs_gradients_refuses_a_loop_at_the_server(tmp_path: Path) -> None:
    folder = with_trainer(tmp_path, LOOP, method="apfl")
    with pytest.raises(Exception, match="apfl takes single gradient steps"):
        run_federation(folder)


def test_a_site_with_another_frozen_backbone_is_refused(tmp_path: Path) -> None:
    frozen = MODEL.replace("    return nn", "    net = nn") + "    net[0].requires_grad_(False)\n    return net\n"
    folder = with_trainer(tmp_path, "", startup_timeout=0.01, deadline=1.0, min_clients=1)
    paths = [folder.model, *(SiteFolder(folder.sites / site.name).model for site in folder.registry())]
    for path in paths:
        path.write_text(frozen)
    paths[-1].write_text(frozen.replace("    net[0].req", "    nn.init.ones_(net[0].bias)\n    net[0].req"))
    models = run_federation(folder)
    assert len(models) == len(paths) - 2
    assert all(set(state) == {"0.weight", "0.bias", "2.weight", "2.bias"} for state in models.values())
    own = load_model(folder.model, folder.config().seed)
    assert own.model.layout.size == 600 * 3 + 3
    assert replace(own, keep=()).split(make_algorithm("fedavg")).model is own.model
