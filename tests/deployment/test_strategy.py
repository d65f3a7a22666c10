"""The strategy and the mod, between them, are FedFomo."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedfomo.algorithms import make_algorithm
from fedfomo.deployment.strategy import FINDINGS, FedFomoStrategy, fedfomo_mod, flatten, unflatten
from fedfomo.errors import InputError
from fedfomo.simulation.problem import FederatedProblem
from toy_problems import InProcess, client_of, perceptron, points_problem, run_rounds

NODES = {10**12 + slot: slot for slot in range(4)}
Change = Callable[[int, int, Message], Message]


class Nodes:
    """What a strategy asks of a grid."""

    def get_node_ids(self) -> list[int]:
        return list(NODES)


def _federate(
    problem: FederatedProblem, rounds: int, change: Change = lambda _slot, _round, reply: reply
) -> FedFomoStrategy:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    strategy = FedFomoStrategy(max_nodes=4, fraction_train=1.0)
    strategy.nodes = dict(NODES)
    model = problem.model
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in NODES}
    initial = ArrayRecord(model.state_dict(problem.initial))  # type: ignore[arg-type]

    def loss(record: ArrayRecord, context: Context) -> float:
        return model.loss(flatten(record)[0], problem.clients[NODES[context.node_id]].validation)

    mod = fedfomo_mod(loss)
    for round in range(rounds):  # noqa: A001

        def train(message: Message, context: Context, round: int = round) -> Message:
            arrays = message.content.array_records["arrays"]
            assert list(message.content) == ["arrays", "config"]  # the app sees nothing of FedFomo
            client = client_of(problem, NODES[context.node_id], round)
            trained = unflatten(client.train(flatten(arrays)[0]), arrays)
            content = RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": 12})})
            return Message(content, reply_to=message)

        replies: list[Message] = []
        for message in strategy.configure_train(round + 1, initial, ConfigRecord(), Nodes()):  # type: ignore[arg-type]
            node = message.metadata.dst_node_id
            reply = mod(message, contexts[node], train)
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(change(NODES[node], round, reply))
        strategy.aggregate_train(round + 1, replies)
    return strategy


def test_models_and_affinity_are_those_of_the_algorithm() -> None:
    problem, algorithm = points_problem(4), make_algorithm("fedfomo")
    strategy = _federate(problem, 4)
    state, _ = run_rounds(problem, algorithm, InProcess(problem, algorithm), [range(4)] * 4)
    for node, slot in NODES.items():
        assert torch.equal(flatten(strategy.models[node])[0], state.models[slot])
    assert torch.equal(strategy._state.affinity.dense(), state.affinity.dense())


def test_a_broken_reply_is_refused_and_the_round_goes_on() -> None:
    problem, algorithm = points_problem(4), make_algorithm("fedfomo")

    def change(slot: int, round: int, reply: Message) -> Message:
        if slot == 2:
            arrays = reply.content.array_records["arrays"]
            reply.content["arrays"] = unflatten(torch.full_like(flatten(arrays)[0], torch.nan), arrays)
        if slot == 3:
            del reply.content[FINDINGS]
        return reply

    strategy = _federate(problem, 3, change)
    state, _ = run_rounds(problem, algorithm, InProcess(problem, algorithm, unheard=(2, 3)), [range(4)] * 3)
    assert {NODES[node] for node in strategy.models} == {0, 1}
    for node, slot in NODES.items():
        if slot < 2:
            assert torch.equal(flatten(strategy.models[node])[0], state.models[slot])


def _npy(shape: str, kind: str = "<f4") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n"


def _first(**changes: Any) -> Callable[[RecordDict], None]:
    """Forge the first array of a reply."""

    def forge(content: RecordDict) -> None:
        arrays = content.array_records["arrays"]
        name, array = next(iter(arrays.items()))
        values = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data, **changes}
        content["arrays"] = ArrayRecord({**arrays, name: Array(**values)})  # type: ignore[arg-type]

    return forge


def _put(name: str, record: Any) -> Callable[[RecordDict], None]:
    return lambda content: content.__setitem__(name, record)


HOSTILE: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "no bytes": (_first(data=b""), "no answer of fedfomo_mod"),
    "an archive": (_first(data=b"PK\x03\x04junk"), "no answer of fedfomo_mod"),
    "a pickle": (_first(data=b"\x80\x04N."), "no answer of fedfomo_mod"),
    "3.6 TiB of header": (_first(data=_npy("(1000000000000,)")), "no answer of fedfomo_mod"),
    "objects": (_first(data=_npy("(1,)", "|O") + bytes(8)), "no answer of fedfomo_mod"),
    "too many bytes": (_first(data=bytes(100_000)), "'network.0.weight' has 100000 bytes|bytes, the model's"),
    "another stype": (_first(stype="evil"), "the stype of"),
    "another dtype": (_first(dtype="float64"), "the dtype of"),
    "another shape": (_first(shape=(1, 1)), "the shape of"),
    "no model": (lambda content: content.pop("arrays"), "no answer of fedfomo_mod"),
    "two models": (lambda content: content.__setitem__("more", content["arrays"]), "no answer of fedfomo_mod"),
    "other names": (_put("arrays", ArrayRecord({"w": Array(np.zeros(3, np.float32))})), "other names"),
    "no metrics": (lambda content: content.pop("metrics"), "no answer of fedfomo_mod"),
    "no weight": (_put("metrics", MetricRecord({"loss": 1.0})), "no answer of fedfomo_mod"),
    "a weight that is none": (_put("metrics", MetricRecord({"num-examples": float("nan")})), "is no weight"),
    "a list of weights": (_put("metrics", MetricRecord({"num-examples": [1, 2]})), "no answer of fedfomo_mod"),
    "other metrics": (_put("metrics", MetricRecord({"num-examples": 12, "more": 1.0})), "not those of most"),
    "findings beyond numbers": (
        _put(FINDINGS, ConfigRecord({"ids": [2**63 - 1], "increments": [0.1], "shares": [1.0]})),
        "does not exist",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_one_hostile_node_is_named_and_the_run_goes_on_without_it(what: str, caplog: pytest.LogCaptureFixture) -> None:
    problem, algorithm = points_problem(4), make_algorithm("fedfomo")
    forge, reason = HOSTILE[what]

    def change(slot: int, round: int, reply: Message) -> Message:
        if slot == 0:  # FedAvg takes the first for what all should be like
            forge(reply.content)
        return reply

    strategy = _federate(problem, 2, change)
    state, _ = run_rounds(problem, algorithm, InProcess(problem, algorithm, unheard=(0,)), [range(4)] * 2)
    assert {NODES[node] for node in strategy.models} == {1, 2, 3}
    for node, slot in NODES.items():
        if slot:
            assert torch.equal(flatten(strategy.models[node])[0], state.models[slot])
    refused = [message for message in caplog.messages if "refused" in message]
    assert len(refused) == 2
    assert all(re.search(reason, message) and str(min(NODES)) in message for message in refused), refused


def test_columns_first_and_nodes_without_examples_are_welcome() -> None:
    def change(slot: int, round: int, reply: Message) -> Message:
        arrays = reply.content.array_records["arrays"]
        turned = {name: Array(np.asfortranarray(array.numpy())) for name, array in arrays.items()}
        reply.content["arrays"] = ArrayRecord(turned)  # type: ignore[arg-type]
        reply.content["metrics"] = MetricRecord({"num-examples": 0})
        return reply

    strategy, plain = _federate(points_problem(4), 2, change), _federate(points_problem(4), 2)
    for node in NODES:
        assert torch.equal(flatten(strategy.models[node])[0], flatten(plain.models[node])[0])


def test_an_evaluation_without_metrics_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    strategy = _federate(points_problem(4), 1)
    asked = list(strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), Nodes()))  # type: ignore[arg-type]
    told: list[dict[str, MetricRecord]] = [
        {},
        {"metrics": MetricRecord({"num-examples": -1, "loss": 2.0})},
        {"metrics": MetricRecord({"num-examples": 1, "loss": 2.0})},
        {"metrics": MetricRecord({"num-examples": 3, "loss": 4.0})},
    ]
    replies = [Message(RecordDict(records), reply_to=message) for message, records in zip(asked, told, strict=True)]  # type: ignore[arg-type]
    averages = strategy.aggregate_evaluate(1, replies)
    assert averages is not None
    assert averages["loss"] == (2.0 + 3 * 4.0) / 4
    assert len([message for message in caplog.messages if "refused" in message]) == 2
    assert strategy.aggregate_evaluate(1, replies[:2]) is None


def test_evaluation_gets_every_nodes_own_model() -> None:
    strategy = _federate(points_problem(4), 2)
    messages = list(strategy.configure_evaluate(2, ArrayRecord(), ConfigRecord(), Nodes()))  # type: ignore[arg-type]
    assert len(messages) == 4
    for message in messages:
        own = strategy.models[message.metadata.dst_node_id]
        assert torch.equal(flatten(message.content.array_records["arrays"])[0], flatten(own)[0])


def test_records_keep_names_shapes_and_what_is_not_float() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), perceptron())
    record = ArrayRecord(module.state_dict())  # type: ignore[arg-type]
    theta, num_trainable = flatten(record)
    assert num_trainable == sum(p.numel() for p in module.parameters())
    assert len(theta) == num_trainable + 8
    again = unflatten(theta + 1, record)
    assert list(again) == list(record)
    for name in record:
        step: Any = 0 if "num_batches" in name else np.float32(1)
        assert np.array_equal(again[name].numpy(), record[name].numpy() + step)


def test_too_many_nodes_and_averages_are_refused() -> None:
    with pytest.raises(InputError, match="averages"):
        FedFomoStrategy(make_algorithm("fedfomo-as-coded"))  # type: ignore[arg-type]
    strategy = FedFomoStrategy(max_nodes=2)
    with pytest.raises(InputError, match="larger max_nodes"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), Nodes())  # type: ignore[arg-type]


def test_a_node_without_validation_data_takes_all_alike() -> None:
    shares: list[list[float]] = []

    def change(slot: int, round: int, reply: Message) -> Message:
        if slot == 1 and round == 1:
            found: Any = reply.content.config_records[FINDINGS]
            shares.append(list(found["shares"]))
        return reply

    _federate(points_problem(4, sizes={1: (12, 0)}), 2, change)
    assert shares == [[0.25] * 4]
