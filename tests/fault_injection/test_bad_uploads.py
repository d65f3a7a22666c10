"""Bad uploads: refused by name at the server, harmless at whoever receives them all the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bad_uploads import Spoilt, spoilt
from fedfomo.algorithms import ALGORITHMS, fedfomo, make_algorithm
from fedfomo.algorithms.fedfomo import core as equations
from fedfomo.core import messages
from fedfomo.core import round as rounds
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.rng import stream
from fedfomo.core.round import configure_clients, run_round
from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.flower_transport import FlowerTransport
from fedfomo.deployment.protocol import Envelope, below
from fedfomo.simulation.problem import FederatedProblem
from scorecard import Torture
from toy_problems import (
    ROUNDS,
    InProcess,
    client_of,
    federation_of,
    fingerprint,
    points_problem,
    with_batch_norm,
)

HOSTILE = 2
SEALERS = MessageCipher(bytes([1] * 32)), MessageCipher(bytes([2] * 32))  # a site's and the server's


class BadPost:
    """Carries encrypted bytes as Flower's post does; what one client sends is exchanged on the way."""

    def __init__(self, uploads: Mapping[int, Any], bad: messages.Flat | None) -> None:
        self._uploads = {client: messages.pack(upload) for client, upload in uploads.items()}
        self._bad = bad

    def ask(self, orders: Iterable[Any], nodes: Any, seconds: float, most: int) -> Iterator[tuple[int, Envelope]]:
        site, server = SEALERS
        for client, _ in orders:
            flat = self._bad if client == HOSTILE else self._uploads[client]
            if flat is not None:
                content = Envelope({"uploads": True}, below("upload", flat)).to_bytes()
                encrypted = site.encrypt(server.public_key, content, Purpose.ANSWER)
                yield client, Envelope.read(server.decrypt(site.public_key, encrypted, Purpose.ANSWER))

    def note_upload(self, slot: int, round: int, models: messages.Flat, is_refused: bool) -> None:
        """Nothing is logged here."""


@dataclass
class Stage:
    """A method in its second round: what the server knows, what clients would send, and what becomes of it."""

    algorithm: AnyAlgorithm
    problem: FederatedProblem

    def __post_init__(self) -> None:
        self.problem = self.problem.split(self.algorithm)
        federation = federation_of(self.problem, self.algorithm)
        exchange = InProcess(self.problem, self.algorithm)
        begin = self.algorithm.start_server(self.problem.start(ROUNDS))
        self.clients = range(len(self.problem.clients))
        self.state = run_round(federation, begin, 0, self.clients, exchange).state
        self.downloads = configure_clients(federation, self.state, 1, self.clients)
        self.uploads = dict(exchange(1, self.downloads))
        self.without, _ = self.run(None)

    def run(self, bad: messages.Flat | None) -> tuple[Any, dict[int, str]]:
        """Run the round with a bad upload, or without any of that client; return the state and who was refused."""
        post: Any = BadPost(self.uploads, bad)
        constants = {"limit": torch.inf, "num_clients": len(self.clients)}
        exchange = FlowerTransport(post, self.algorithm, constants, self.problem.initial, {}, 1.0, 1, is_share=True)
        played = run_round(federation_of(self.problem, self.algorithm), self.state, 1, self.clients, exchange)
        return played.state, {**played.refused, **exchange.refused}

    def cases(self, seed: int) -> list[Spoilt]:
        return spoilt(messages.pack(self.uploads[HOSTILE]), len(self.clients), stream(seed, "bad uploads"))


def _misses(stage: Stage, cases: Iterable[Spoilt]) -> list[str]:
    """List the cases that were not refused by name, or that changed anything."""
    missed: list[str] = []
    without = fingerprint(stage.without)
    for case in cases:
        state, refused = stage.run(case.flat)
        is_named = list(refused) == [HOSTILE] and case.field.split(".")[0] in refused[HOSTILE]
        if not is_named or fingerprint(state) != without:
            missed.append(f"{type(stage.algorithm).__name__}: {case.field[:40]} {case.what}: {refused}")
    return missed


def _some(cases: list[Spoilt], count: int, seed: int) -> list[Spoilt]:
    order = torch.randperm(len(cases), generator=stream(seed, "some")).tolist()
    return [cases[place] for place in order[:count]]


def test_bad_uploads_are_refused_by_name_and_change_nothing(torture: Torture, monkeypatch: pytest.MonkeyPatch) -> None:
    in_depth = {"fedfomo": [perceptron_and_norm(False), perceptron_and_norm(True)]}
    total, missed = 0, list[str]()
    stages = {name: Stage(make_algorithm(name), points_problem()) for name in ALGORITHMS}
    for number, (name, stage) in enumerate(stages.items()):
        shares = _some(stage.cases(number), 100 if torture.is_full else 3, number)
        missed, total = missed + _misses(stage, shares), total + len(shares)
        for problem in in_depth.get(name, []):
            deep = Stage(stage.algorithm, problem)
            cases = _some(deep.cases(number), 1000 if torture.is_full else 40, number)
            missed, total = missed + _misses(deep, cases), total + len(cases)
    # The same without the check: what is not finite reaches the state, and the comparison above notices.
    monkeypatch.setattr(rounds, "upload_check", lambda federation, state: lambda upload: None)
    spread = 0
    for stage in stages.values():
        if messages.pack(stage.uploads[HOSTILE]):
            broken = {n: _broken(t) for n, t in messages.pack(stage.uploads[HOSTILE]).items()}
            spread += _spreads(stage, broken)
    with_uploads = sum(bool(messages.pack(stage.uploads[HOSTILE])) for stage in stages.values())
    torture.record(
        "08",
        "A bad upload is refused by name, and changes nothing for anybody else",
        f"{total} bad uploads, encrypted, to the server of all {len(stages)} methods: not finite, of another shape,"
        " type, length or name, about clients that do not exist, with weights that would overflow",
        f"{total - len(missed)} refused by name, server's state bit for bit that of a round without the client;"
        f" without the check, it spreads or ends the round in {spread} of {with_uploads} methods",
        not missed and spread == with_uploads,
        missed=missed[:20],
    )


def _spreads(stage: Stage, broken: messages.Flat) -> bool:
    """Tell whether a broken upload that nobody checks ends the round, or reaches the server's state."""
    try:
        return not _is_whole(stage.run(broken)[0])
    except ValueError:
        return True


def perceptron_and_norm(has_norm: bool) -> FederatedProblem:
    return points_problem(build=with_batch_norm) if has_norm else points_problem()


def _broken(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor


def _is_whole(message: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in messages.pack(message).values() if t.is_floating_point())


def test_a_bad_model_that_reaches_a_client_weighs_nothing(torture: Torture, monkeypatch: pytest.MonkeyPatch) -> None:
    count, harmed, refused, downloads = 0, 0, 0, 0
    for has_norm in (False, True):
        problem = perceptron_and_norm(has_norm)
        stage = Stage(make_algorithm("fedfomo"), problem)
        for number in range(torture.repetitions(50)):
            for what, bad in _bad_models(problem, stream(number, "bad models")):
                with_it, alone = _mixtures(stage, number % len(stage.clients), bad)
                harmed += not torch.equal(with_it, alone)
                count += 1
                assert bool(torch.isfinite(with_it).all()) or not torch.equal(with_it, alone), what
    for name in ALGORITHMS if torture.is_full else ("fedfomo", "fedavg", "ifca", "fedavg-shared"):
        stage = Stage(make_algorithm(name), points_problem())
        schema, flat = messages_of(stage.algorithm).download, messages.pack(stage.downloads[0])
        for field, tensor in flat.items():
            if tensor.is_floating_point() and tensor.numel():
                downloads += 1
                spoilt_one = messages.unpack(schema, {**flat, field: _broken(tensor)})
                fault = messages.validate(schema, spoilt_one, len(stage.problem.initial), len(stage.clients))
                refused += fault is not None and f"'{field}'" in fault
    # Without the rule that what is not finite weighs nothing, everybody who is sent such a model is harmed.
    monkeypatch.setattr(equations, "first_order_weights", lambda loss, losses, distances: (loss - losses) / distances)
    monkeypatch.setattr(equations, "mixing_weights", lambda weights: weights / weights.sum())
    problem = points_problem()
    stage = Stage(make_algorithm("fedfomo"), problem)
    (_, bad), *_ = _bad_models(problem, stream(0))
    twin = not torch.equal(*_mixtures(stage, 0, bad))
    torture.record(
        "08b",
        "A bad model that reaches a client all the same weighs nothing there",
        f"{count} models handed to FedFomo clients past every check: NaN or infinity in all, in one, in a hidden bias"
        f" (finite loss, infinite distance), in a buffer, huge; {downloads} broken downloads to sites of all methods",
        f"{count - harmed} mixtures bit for bit those without the model; {refused} downloads refused by name",
        harmed == 0 and refused == downloads and twin,
    )


def _bad_models(problem: FederatedProblem, rng: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    initial, layout = problem.initial, problem.model.layout
    for value in (torch.nan, torch.inf, -torch.inf):
        yield f"all {value}", torch.full_like(initial, value)
        for what, last in (("anywhere", len(initial)), ("hidden bias", 0)):
            model = initial.clone()
            bias = next(slot for slot in layout.slots if slot.name == "0.bias")
            place = int(torch.randint(bias.start, bias.stop, (), generator=rng))
            model[int(torch.randint(last, (), generator=rng)) if last else place] = value
            yield f"{what} {value}", model
        if layout.size > layout.num_trainable:
            model = initial.clone()
            model[int(torch.randint(layout.num_trainable, layout.size, (), generator=rng))] = value
            yield f"buffer {value}", model
    yield "huge", torch.full_like(initial, 3e38)


def _mixtures(stage: Stage, receiver: int, bad: Tensor) -> tuple[Tensor, Tensor]:
    """Personalise once with a bad model among the downloads, and once without it."""
    download = stage.downloads[receiver]
    client = client_of(stage.problem, receiver, 1, algorithm=stage.algorithm)
    memory = fedfomo.Memory(stage.problem.initial, stage.uploads[receiver].model, fedfomo.EvaluationWeights.none())
    more = replace(download, ids=torch.cat((download.ids, torch.tensor([0]))), models=(*download.models, bad))
    return tuple(stage.algorithm.personalise(client, d, memory).model for d in (more, download))  # type: ignore[return-value]
