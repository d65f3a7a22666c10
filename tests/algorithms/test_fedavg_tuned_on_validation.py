"""Tuning the global model on validation data, worked by hand."""

from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.fedavg_finetuned import FedAvgTunedOnValidation
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import InProcess, client_of, digest, fingerprint, points_problem, run_rounds, scalar_problem


def test_the_global_model_is_tuned_towards_each_target() -> None:
    # Trained halfway to 8 and to −4, the average is 1. Then tuned halfway to what validation wants, 0 and 6.
    result = simulate(scalar_problem([(8.0, 0.0), (-4.0, 6.0)]), FedAvgTunedOnValidation(), SimulationConfig(rounds=1))
    assert (result.models[0].item(), result.models[1].item()) == (0.5, 3.5)
    assert result.after_training[0].loss == 4.0**2  # "after training" speaks of training data: halfway to 8


def test_tuning_leaves_no_trace_in_the_global_model() -> None:
    problem = points_problem()
    states = [
        run_rounds(problem, a, InProcess(problem, a), [range(6)] * 3)[0] for a in (FedAvg(), FedAvgTunedOnValidation())
    ]
    assert fingerprint(states[0]) == fingerprint(states[1])


def test_without_validation_data_it_is_fedavg() -> None:
    problem = points_problem(sizes={0: (12, 0), 3: (12, 0)})
    plain = simulate(problem, FedAvg(), SimulationConfig(rounds=2)).models
    tuned = simulate(problem, FedAvgTunedOnValidation(), SimulationConfig(rounds=2)).models
    assert digest({n: tuned[n] for n in (0, 3)}) == digest({n: plain[n] for n in (0, 3)})
    assert digest({1: tuned[1]}) != digest({1: plain[1]})


def test_it_computes_more_by_the_validation_data() -> None:
    problem, algorithm = points_problem(), FedAvgTunedOnValidation()
    client = client_of(problem, 0)
    download = FedAvg().configure_client(FedAvg().start_server(problem.start(1)), 0, client.random("unused"))
    algorithm.personalise(client, download, None)
    assert client.effort.gradients == 4
    algorithm.train(client, download, None)
    assert client.effort.gradients == 4 + 12
