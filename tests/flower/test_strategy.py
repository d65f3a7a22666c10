"""The strategy and the mod, between them, are FedFomo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from fedfomo.algorithms import make_algorithm
from fedfomo.errors import InputError
from fedfomo.flower.records import flatten, unflatten
from fedfomo.flower.strategy import FINDINGS, FedFomoStrategy, fedfomo_mod
from fedfomo.simulation.client_side import Problem
from worlds import InProcess, client_of, perceptron, play, points_problem

NODES = {10**12 + slot: slot for slot in range(4)}
Change = Callable[[int, int, Message], Message]


class Nodes:
    """What a strategy asks of a grid."""

    def get_node_ids(self) -> list[int]:
        return list(NODES)


def _federate(problem: Problem, rounds: int, change: Change = lambda _slot, _round, reply: reply) -> FedFomoStrategy:
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
    state, _ = play(problem, algorithm, InProcess(problem, algorithm), [range(4)] * 4)
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
    state, _ = play(problem, algorithm, InProcess(problem, algorithm, unheard=(2, 3)), [range(4)] * 3)
    assert {NODES[node] for node in strategy.models} == {0, 1}
    for node, slot in NODES.items():
        if slot < 2:
            assert torch.equal(flatten(strategy.models[node])[0], state.models[slot])


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
        FedFomoStrategy(make_algorithm("fedfomo", {"num_averages": 2}))  # type: ignore[arg-type]
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
