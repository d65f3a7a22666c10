"""What never leaves a client is trained without noise and costs nothing; what it is sent back from pays in full."""

from dataclasses import replace

import pytest
import torch

from fedfomo.algorithms import make_algorithm
from fedfomo.algorithms.apfl import Apfl
from fedfomo.algorithms.apfl import Memory as Blended
from fedfomo.algorithms.ditto import Ditto, Memory
from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.core.client import Client
from fedfomo.core.local_training import Sgd
from fedfomo.core.rng import stream
from fedfomo.privacy.accountant import Query
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.dp_sgd import DpSgd
from fedfomo.privacy.private_data import BudgetTracker, PrivateExamples, SeededNoise, make_private
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import HALFWAY, client_of, points_problem, scalar_model, targets

ONCE = SimulationConfig(rounds=1)


def private_client() -> Client:
    """Return a client whose training adds noise."""
    plain = client_of(points_problem(), 0)
    tracker = BudgetTracker(SeededNoise(stream(0, "noise")), {}, lambda ledger: True)
    trainer = DpSgd(Sgd(batch_size=5, epochs=1), 1.0, 1.0)
    return replace(plain, data=make_private(plain.data, tracker), trainer=trainer)


def ledger_of(client: Client) -> dict[Query, int]:
    assert isinstance(client.data.train, PrivateExamples)
    return client.data.train.tracker.ledger


def test_dittos_personal_model_is_trained_without_noise_and_the_global_one_pays() -> None:
    plain, private = client_of(points_problem(), 0), private_client()
    download = Download(plain.start.initial)
    exact = Ditto().train(plain, download, Memory(None))
    noisy = Ditto().train(private, download, Memory(None))
    assert torch.equal(noisy.model, exact.model)
    assert not torch.equal(noisy.upload.model, exact.upload.model)
    other = private_client()
    global_one = FedAvg().train(other, download, None)
    assert torch.equal(noisy.upload.model, global_one.upload.model)
    assert ledger_of(private) == ledger_of(other) == {Query("training", 1.0, 5 / 12): 3}


@pytest.mark.parametrize("name", ["per-fedavg", "fedavg-tuned-on-validation"])
def test_a_copy_that_is_tuned_before_its_use_costs_nothing(name: str) -> None:
    plain, private = client_of(points_problem(), 0), private_client()
    algorithm, download = make_algorithm(name), Download(plain.start.initial)
    exact = algorithm.personalise(plain, download, None).model
    assert not torch.equal(exact, download.model)
    assert torch.equal(algorithm.personalise(private, download, None).model, exact)
    assert ledger_of(private) == {}


def test_apfls_upload_is_fedavgs_and_pays_as_much() -> None:
    private, other = private_client(), private_client()
    download = Download(private.start.initial)
    upload = Apfl().train(private, download, Blended(download.model, 0.5)).upload
    assert torch.equal(upload.model, FedAvg().train(other, download, None).upload.model)
    assert ledger_of(private) == ledger_of(other) == {Query("training", 1.0, 5 / 12): 3}


def test_whoever_keeps_a_part_of_the_model_adds_noise_to_all_that_moves_it() -> None:
    # Both of Ditto's trainings move the part that stays, and the next upload is trained on top of it.
    problem = replace(points_problem(), privacy=Privacy(noise=1.0, delta=1e-3), keep=("2.*",))
    twice, once = (simulate(problem, algorithm, ONCE).spent for algorithm in (Ditto(), FedAvg()))
    assert twice is not None
    assert once is not None
    assert twice[0].training > once[0].training
    mixture = simulate(problem, make_algorithm("private-mixture", {"shared_learns_from": "itself"}), ONCE).spent
    assert mixture is not None
    assert mixture[0].training > once[0].training
    tuned = simulate(problem, make_algorithm("fedavg-tuned-on-validation"), ONCE).spent
    assert tuned is not None
    assert tuned[0].validation > 0


def test_a_gradient_for_local_use_is_exact_and_an_empty_sample_has_none() -> None:
    # Targets 1 and 3 at 0: the mean gradient is −4, beyond the clip of 1. Weight decay of ½ at 2 is all that is left
    # of an empty sample.
    tracker = BudgetTracker(SeededNoise(stream(0, "noise")), {}, lambda ledger: True)
    trainer, model = DpSgd(replace(HALFWAY, weight_decay=0.5), 1.0, 1.0), scalar_model()
    model.load(torch.tensor([0.0]))
    records = PrivateExamples(targets(1.0, 3.0), ("training",), tracker).for_local_use()
    assert trainer.gradient(model, records).tolist() == [-4.0]
    model.load(torch.tensor([2.0]))
    empty = PrivateExamples(targets(), ("training",), tracker, 0.1, 5.0, b"a draw").for_local_use()
    assert trainer.gradient(model, empty).tolist() == [1.0]
    assert tracker.ledger == {}
