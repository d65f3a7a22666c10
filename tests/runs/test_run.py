"""From a configuration to a run: what a run is known by."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedfomo.core.local_training import Sgd
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.runs import run
from fedfomo.runs.config import ExperimentConfig, RunConfig

PLAIN = RunConfig()
OTHER = RunConfig(
    "fedprox",
    {"mu": 0.1},
    7,
    Path("runs/other"),
    ExperimentConfig(
        "cifar10", Path("data"), True, scenario=ScenarioConfig(clients=3), training=Sgd(augment=True), workers=2
    ),
)
# A setting that is added later must not move these: a run that was begun before it has to go on.
PLAINS = "d0621354fae1948b788f3c64b5428b0fd82dd314c077e416ab2d3cd4277aefd8"
OTHERS = "630128f77a84624f85ba39f599b1c7b12253e5685c417e68ee97fa2fcc811923"
ELSEWHERE: dict[str, Any] = {"data": Path("there"), "workers": 3, "executor": "ray", "track": ("mlflow",)}


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(run, "version", lambda name: f"{name} 1.0")
    client = SimpleNamespace(train=np.arange(3), validation=np.arange(3, 5), test=np.arange(2))
    partition = SimpleNamespace(clients=[client])
    return SimpleNamespace(data=SimpleNamespace(fingerprint="abc"), scenario=SimpleNamespace(partition=partition))


@pytest.mark.parametrize(("config", "digest"), [(PLAIN, PLAINS), (OTHER, OTHERS)])
def test_digests_stay_so_that_runs_begun_earlier_go_on(config: RunConfig, digest: str, prepared: Any) -> None:
    assert run._digest(config, prepared) == digest


def test_where_a_run_is_computed_is_no_part_of_its_digest(prepared: Any) -> None:
    moved = replace(PLAIN, out=Path("elsewhere"), setting=replace(PLAIN.setting, **ELSEWHERE))
    digests = {run._digest(config, prepared) for config in (PLAIN, moved)}
    assert len(digests) == 1
    assert run._digest(replace(PLAIN, seed=1), prepared) not in digests
