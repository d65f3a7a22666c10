"""What a budget covers: every noisy query on training and validation records, and no evaluation without a guarantee."""

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.core.algorithm import Personalised
from fedfomo.core.client import Client
from fedfomo.errors import InputError
from fedfomo.privacy.accountant import Query, epsilon_of
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.engine import PrivacyEngine
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import KeepLines, initialised, perceptron, points_problem, with_batch_norm

TRAINED = Query("validation", 1.0, 1.0)  # four records are one batch
EXACT = Query("validation", 0.0, 1.0)


class TrainsOnValidation(FedAvg):
    """Sends what it has learnt from its validation records too."""

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Train on validation records, for everybody to see."""
        return Personalised(client.train(download.model, examples=client.data.validation), None)


def budget(steps: int, **privacy: Any) -> PrivacyEngine:
    """Return what protects a client that can afford so many steps on validation records."""
    limit = epsilon_of({TRAINED: steps}, "validation", 1e-3)
    return PrivacyEngine(Privacy(noise=1.0, delta=1e-3, budget=limit, **privacy), 1.0)


def test_training_on_validation_records_is_covered_whether_or_not_evaluations_are() -> None:
    for noise in (None, 1.0):
        assert budget(3, validation_noise=noise).affords({TRAINED: 3})
        assert not budget(3, validation_noise=noise).affords({TRAINED: 4})


def test_evaluations_without_a_guarantee_are_left_out() -> None:
    assert budget(3).affords({TRAINED: 3, EXACT: 100})
    assert not budget(3).affords({TRAINED: 4, EXACT: 100})


def test_a_client_stops_before_its_validation_records_exceed_the_budget() -> None:
    limit = epsilon_of({TRAINED: 3}, "validation", 1e-3)  # more than three rounds of training take
    trainable = replace(points_problem(), privacy=Privacy(noise=1.0, delta=1e-3, budget=limit))
    lines: list[dict[str, Any]] = []
    result = simulate(trainable, TrainsOnValidation(), SimulationConfig(rounds=4), callback=KeepLines(lines))
    assert [bool(line["budget_spent"]) for line in lines] == [False, False, False, True]
    assert result.spent is not None
    assert all(spent.validation == limit for spent in result.spent.values())


def test_a_site_without_training_examples_is_checked_by_its_layers_alone() -> None:
    problem = points_problem(num_clients=1, sizes={0: (0, 4)})
    engine = PrivacyEngine(Privacy(noise=1.0, delta=1e-3), 1.0)
    engine.check(initialised(perceptron), problem.clients)
    with pytest.raises(InputError, match="GroupNorm"):
        engine.check(initialised(with_batch_norm), problem.clients)


def test_a_run_in_which_nobody_has_training_examples_spends_nothing_on_them() -> None:
    problem = points_problem(num_clients=2, sizes={0: (0, 4), 1: (0, 4)}, build=lambda: nn.Linear(2, 3))
    problem = replace(problem, privacy=Privacy(noise=1.0, delta=1e-3))
    result = simulate(problem, FedAvg(), SimulationConfig(rounds=1))
    assert result.spent is not None
    assert all(spent.headline == 0 for spent in result.spent.values())
