"""From a setting to the data, the clients, the model and the simulation of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedfomo.core.device import available_cores, resolve_device, workers_on
from fedfomo.core.model import Model, prefers_channels_last
from fedfomo.core.networks import NETWORKS
from fedfomo.core.rng import layer_rng, stream
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.readers import load_data
from fedfomo.datasets.scenarios import Scenario, build_scenario
from fedfomo.datasets.standardise import Scale
from fedfomo.errors import require, unknown
from fedfomo.runs.config import ExperimentConfig
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem


@dataclass(frozen=True)
class Prepared:
    """A setting made real: every method of a comparison starts from the same one."""

    data: DataSet
    scenario: Scenario
    problem: FederatedProblem
    simulation: SimulationConfig
    scale: Scale | None  # of clients' inputs; None: as they are in the data


def prepare(setting: ExperimentConfig, seed: int) -> Prepared:
    """Load the data, spread it over clients, and draw the common initial model."""
    data = load_data(setting.dataset, setting.data)
    clients, examples = setting.scenario.clients, len(data.train)
    require(clients <= examples, f"clients is {clients:,}, of {examples:,} training examples: give fewer clients")
    scenario = build_scenario(setting.scenario, data, seed)
    scale = Scale.of(data.train.inputs).rounded() if setting.standardise else None
    if scale is not None:
        scenario = replace(scenario, clients=tuple(map(scale.applied_to, scenario.clients)))
    shape = tuple(data.train.inputs.shape[1:])
    with layer_rng(stream(seed, "initial model")):
        module = NETWORKS[network_name(setting, shape)](shape, data.num_classes)
    channels_last = prefers_channels_last(module, data.train.inputs)
    device = resolve_device(setting.device)
    model = Model(module.to(device), channels_last=channels_last, precision=setting.precision)
    groups = scenario.partition.groups, scenario.partition.target_groups
    problem = FederatedProblem(model, model.read(), scenario.clients, setting.training, seed, *groups, setting.privacy)
    problem = replace(problem, share=setting.share, keep=setting.keep)
    simulation = setting.simulation(default_workers=available_cores())
    simulation = replace(simulation, workers=workers_on(model.device, setting.workers, simulation.workers))
    return Prepared(data, scenario, problem, simulation, scale)


def network_name(setting: ExperimentConfig, shape: tuple[int, ...]) -> str:
    """Return the architecture that a setting means for inputs of some shape."""
    network = setting.network
    if network == "auto":
        network = "mlp" if min(shape[1:]) < 20 else "small_cnn"
    if network not in NETWORKS:
        raise unknown("network", network, NETWORKS)
    return network
