"""The private mixture: its network, what leaves a client, and what it turns into."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softmax

from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.algorithms.local import Local
from fedfomo.algorithms.private_mixture import CERTAIN, Memory, Mixture, Places, PrivateMixture
from fedfomo.core.client import Client
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.simulation.problem import FederatedProblem
from toy_problems import Scalar, client_of, perceptron, points_problem, with_batch_norm


def some_mixture(blends: str = "probabilities") -> Mixture:
    mixture = Mixture(perceptron(), blends)
    for number, parameter in enumerate(mixture.parameters()):
        nn.init.normal_(parameter, std=0.2, generator=stream(number))
    return mixture


def hidden_layer(network: nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(network, nn.Sequential)
    return network[:-1](inputs)


def gated(problem: FederatedProblem, opening: float) -> tuple[Client, Places, Memory]:
    """Return a client whose gate is wide open for the shared expert, or closed."""
    client = client_of(problem, 0, algorithm=PrivateMixture())
    places = Places.of(client.model.layout)
    gate = torch.zeros(len(places.gate))
    gate[-1] = opening
    return client, places, Memory(problem.initial, gate)


def test_probabilities_are_mixed_by_the_gate() -> None:
    mixture, inputs = some_mixture(), torch.randn(5, 2, generator=stream(1))
    share = mixture.gate(hidden_layer(mixture.shared, inputs)).sigmoid()
    expected = share * softmax(mixture.shared(inputs), dim=1) + (1 - share) * softmax(mixture.private(inputs), dim=1)
    assert torch.allclose(softmax(mixture(inputs), dim=1), expected, atol=1e-6)
    assert torch.allclose(mixture(inputs).exp(), expected, atol=1e-6)


def test_outputs_are_mixed_for_regression() -> None:
    mixture, inputs = some_mixture("outputs"), torch.randn(5, 2, generator=stream(1))
    share = mixture.gate(hidden_layer(mixture.shared, inputs)).sigmoid()
    expected = share * mixture.shared(inputs) + (1 - share) * mixture.private(inputs)
    assert torch.allclose(mixture(inputs), expected, atol=1e-5)


def test_a_new_gate_is_half_open() -> None:
    mixture = Mixture(perceptron(), "outputs")
    nn.init.zeros_(mixture.private[2].weight)
    nn.init.zeros_(mixture.private[2].bias)
    inputs = torch.randn(5, 2, generator=stream(1))
    assert torch.allclose(mixture(inputs), mixture.shared(inputs) / 2)


def test_impossible_answers_of_one_expert_do_not_break_the_other() -> None:
    mixture = some_mixture()
    nn.init.constant_(mixture.private[2].weight, 1e4)
    outputs = mixture(torch.randn(5, 2, generator=stream(1)))
    assert bool(torch.isfinite(outputs).all())


def test_the_gate_does_not_teach_the_shared_expert() -> None:
    # Its gradient is that of a mixture whose gate reads constants.
    mixture, inputs = some_mixture(), torch.randn(5, 2, generator=stream(1))
    labels = torch.tensor([0, 1, 2, 0, 1])
    cross_entropy(mixture(inputs), labels).backward()
    found = [parameter.grad for parameter in mixture.shared.parameters()]
    with torch.no_grad():
        share = mixture.gate(hidden_layer(mixture.shared, inputs)).sigmoid()
        private = softmax(mixture.private(inputs), dim=1)
    mixed = share * softmax(mixture.shared(inputs), dim=1) + (1 - share) * private
    loss = -mixed.gather(1, labels[:, None]).log().mean()
    for gradient, expected in zip(found, torch.autograd.grad(loss, list(mixture.shared.parameters())), strict=True):
        assert gradient is not None
        assert torch.allclose(gradient, expected, atol=1e-5)


def test_the_parts_lie_apart_in_the_mixtures_parameters() -> None:
    layout = Layout.of(Mixture(with_batch_norm(), "probabilities"))
    places, size = Places.of(layout), Layout.of(with_batch_norm()).size
    everywhere = torch.cat((places.shared, places.private, places.gate)).sort().values
    assert torch.equal(everywhere, torch.arange(layout.size))
    shared, private, gate = torch.full((size,), 1.0), torch.full((size,), 2.0), torch.full((101,), 3.0)
    theta = places.joined(shared, Memory(private, gate))
    assert [theta[where].unique().item() for where in (places.shared, places.private, places.gate)] == [1, 2, 3]


def test_only_the_shared_expert_leaves() -> None:
    problem = points_problem()
    client, places, memory = gated(problem, 0.0)
    other = problem.initial + 0.1  # a gate between equal experts has nothing to learn
    trained = PrivateMixture().train(client, Download(other), memory)
    assert torch.equal(trained.upload.model, trained.model[places.shared])
    assert torch.equal(trained.memory.private, trained.model[places.private])
    assert trained.memory.gate is not None
    assert torch.equal(trained.memory.gate, trained.model[places.gate])
    assert not torch.equal(trained.upload.model, other)
    assert not torch.equal(trained.memory.private, problem.initial)
    assert bool((trained.memory.gate != 0).any())


def test_with_the_gate_open_the_shared_expert_trains_as_in_fedavg() -> None:
    # Up to the rounding of a logarithm of probabilities.
    problem = replace(points_problem(), trainer=replace(points_problem().trainer, weight_decay=0.0))
    client, _, memory = gated(problem, CERTAIN)
    trained = PrivateMixture().train(client, Download(problem.initial), memory)
    plain = FedAvg().train(client_of(problem, 0), Download(problem.initial), None)
    assert torch.allclose(trained.upload.model, plain.upload.model, atol=1e-6)
    assert torch.equal(trained.memory.private, problem.initial)


def test_with_the_gate_shut_the_private_expert_trains_alone() -> None:
    problem = replace(points_problem(), trainer=replace(points_problem().trainer, weight_decay=0.0))
    client, _, memory = gated(problem, -CERTAIN)
    trained = PrivateMixture().train(client, Download(problem.initial), memory)
    alone = Local().train(client_of(problem, 0), None, Local().start_client(problem.start(4)))
    assert torch.allclose(trained.memory.private, alone.model, atol=1e-6)
    assert torch.equal(trained.upload.model, problem.initial)


def test_a_gate_can_wait() -> None:
    problem = points_problem()
    algorithm = PrivateMixture(gate_waits=1)
    for t, moves in ((0, False), (1, True)):
        client = client_of(problem, 0, t, algorithm=algorithm)
        memory = algorithm.train(client, Download(problem.initial), Memory(problem.initial + 0.1, None)).memory
        assert memory.gate is not None
        assert bool((memory.gate != 0).any()) == moves


def test_who_cannot_train_hears_the_shared_expert_only() -> None:
    problem = points_problem(sizes={0: (0, 4)})
    client = client_of(problem, 0, algorithm=PrivateMixture())
    model = PrivateMixture().personalise(client, Download(problem.initial), Memory(problem.initial + 1, None)).model
    validation = problem.clients[0].validation
    assert client.model.loss(model, validation) == pytest.approx(problem.model.loss(problem.initial, validation))


def test_a_network_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(InputError, match="linear layer"):
        PrivateMixture().network(Scalar())
    with pytest.raises(InputError, match="gate_waits"):
        PrivateMixture(gate_waits=-1)


def test_a_shared_expert_that_learns_from_itself_is_fedavgs() -> None:
    problem = points_problem()
    client = client_of(problem, 0, algorithm=PrivateMixture())
    plain = client_of(problem, 0)
    algorithm = PrivateMixture(shared_learns_from="itself")
    download, memory = Download(problem.initial), algorithm.start_client(client.start)
    trained = algorithm.train(client, download, memory)
    expected = FedAvg().train(plain, download, None).upload.model
    torch.testing.assert_close(trained.upload.model, expected, rtol=1e-4, atol=1e-6)
    # What stays has learnt too, and what left does not depend on it.
    assert not torch.equal(trained.memory.private, memory.private)
    other = replace(memory, private=torch.full_like(memory.private, 9.0))
    assert torch.equal(algorithm.train(client, download, other).upload.model, trained.upload.model)


def test_buffers_of_a_shared_expert_that_learns_from_itself_are_its_own() -> None:
    problem = points_problem(build=with_batch_norm)
    algorithm = PrivateMixture(shared_learns_from="itself")
    client = client_of(problem, 0, algorithm=algorithm)
    download, memory = Download(problem.initial), algorithm.start_client(client.start)
    trained = algorithm.train(client, download, memory)
    expected = FedAvg().train(client_of(problem, 0), download, None).upload.model
    torch.testing.assert_close(trained.upload.model, expected, rtol=1e-4, atol=1e-6)  # running statistics included
    assert not torch.equal(expected, problem.initial)
