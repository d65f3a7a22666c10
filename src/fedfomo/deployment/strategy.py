"""For an app that exists: Flower's FedAvg replaced by `FedFomoStrategy`, and `fedfomo_mod` around its training.

The strategy keeps every node's model apart and sends each node a few of them; the mod evaluates these with a loss
function of the app's, mixes them by first-order weights, lets the app train from the mixture, and tells the server
what it found. The arithmetic is that of `fedfomo.algorithms.fedfomo`.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedfomo.algorithms.fedfomo import EvaluationWeights, FedFomo, FedFomoAsCoded, RobustFedFomo, State, Upload
from fedfomo.algorithms.fedfomo.as_coded import affinity_increments
from fedfomo.algorithms.fedfomo.core import weigh
from fedfomo.core import messages
from fedfomo.core.algorithm import messages_of
from fedfomo.core.archives import decode_npy
from fedfomo.core.rng import stream
from fedfomo.core.vectors import distances_from, mix
from fedfomo.deployment.strategy_report import RoundLog, report_input, write
from fedfomo.errors import require
from fedfomo.io import printable

NPY_ALIGNMENT = 64  # bytes by which headers of the same shape may differ: columns first is a letter shorter
STATISTICS = ("running_mean", "running_var")  # of BatchNorm: averaged with the rest, but no part of distances


def flatten(record: ArrayRecord) -> tuple[Tensor, int]:
    """Return all float32 arrays as one vector, and how many of its coordinates are trainable."""
    names = _names(record)
    pieces = [torch.from_numpy(decode_npy(record[name].data).ravel().copy()) for name in names]
    sizes = [len(piece) for name, piece in zip(names, pieces, strict=True) if not name.endswith(STATISTICS)]
    return (torch.cat(pieces) if pieces else torch.empty(0)), sum(sizes)


def unflatten(theta: Tensor, like: ArrayRecord) -> ArrayRecord:
    """Return a record like another with a vector's values; arrays of other types are the other's own."""
    values: dict[str, Array] = dict(like.items())
    begin = 0
    for name in _names(like):
        shape = like[name].shape
        end = begin + int(np.prod(shape))
        values[name] = Array(theta[begin:end].numpy().reshape(shape).copy())
        begin = end
    return ArrayRecord({name: values[name] for name in like})  # pyright: ignore[reportArgumentType]


def misfit(record: ArrayRecord, like: ArrayRecord) -> str | None:
    """Say in what a record differs from another, by all that can be seen before its arrays are read."""
    if list(record) != list(like):
        return "its arrays have other names than the model's"
    for name, array in record.items():
        for what in ("stype", "dtype", "shape"):
            if getattr(array, what) != getattr(like[name], what):
                return f"the {what} of '{name}' is not that of the model"
        if len(array.data) > len(like[name].data) + NPY_ALIGNMENT:
            return f"'{name}' has {len(array.data)} bytes, the model's has {len(like[name].data)}"
    return None


def _names(record: ArrayRecord) -> list[str]:
    floats = [name for name, array in record.items() if array.dtype == "float32"]
    return sorted(floats, key=lambda name: name.endswith(STATISTICS))  # stable: otherwise in the record's order


FINDINGS = "fedfomo.findings"
CANDIDATES = "fedfomo.candidates"
CANDIDATE = "fedfomo.candidate."
REFERENCE, OWN = "fedfomo.reference", "fedfomo.own"

CLIENT_DEFENCES = ("check_mixture", "new_head_epochs", "flag_free_riders")
"""Options of `RobustFedFomo` that an app cannot follow; those for the server work as ever."""

LossFunction = Callable[[ArrayRecord, Context], float]
"""From a model to its mean loss on this node's validation data; NaN for every model if it has none."""

log = logging.getLogger(__name__)


class FedFomoStrategy(FedAvg):
    """FedFomo where FedAvg was: the same arguments, and FedFomo's own."""

    def __init__(
        self,
        algorithm: FedFomo | None = None,
        *,
        max_nodes: int = 1000,
        seed: int = 0,
        metric: str = "accuracy",  # the figure of evaluations that a report shows
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        self.nodes: dict[int, int] = {}  # by node id, the slot by which others know it
        self._algorithm = algorithm or FedFomo()
        is_known = type(self._algorithm) in (FedFomo, FedFomoAsCoded, RobustFedFomo)
        require(is_known, f"FedFomoStrategy does not know {type(self._algorithm).__name__}")
        for option in ("num_averages", *CLIENT_DEFENCES):
            require(not getattr(self._algorithm, option, 0), f"{option} does nothing here: leave it at 0")
        self._seed = seed
        self._metric = metric
        self._log = RoundLog(metric)
        self._state: State = messages_of(self._algorithm).state.start(max_nodes)
        self._initial: ArrayRecord | None = None

    @property
    def models(self) -> dict[int, ArrayRecord]:
        """Every node's model as last uploaded, by node id; there is no global one."""
        return {node: self._model(slot) for node, slot in self.nodes.items() if slot in self._state.models}

    def write_report(self, path: Path | str) -> Path:
        """Write one HTML page: how every node does, round by round, and who values whom."""
        names = [f"node {slot}" for slot in range(len(self.nodes))]
        affinity = [row[: len(names)] for row in self._state.affinity.dense().tolist()[: len(names)]]
        facts = report_input(self._algorithm, self._log, names, affinity, self._metric, self._seed)
        return write(facts, Path(path))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send every sampled node its own model and those that may help it."""
        self._initial = self._initial or arrays
        messages = list(super().configure_train(server_round, arrays, config, grid))
        nodes = [message.metadata.dst_node_id for message in messages]
        self._log.begin(server_round, [self._slot(node) for node in nodes])
        return [self._train_message(node, server_round, config) for node in nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep the models apart, and learn from what nodes found out about each other."""
        replies = list(replies)
        usable = _alike([reply for reply in replies if _is_usable(reply, self._fault_of)])
        good, _ = self._check_and_log_replies(usable, is_train=True)
        uploads = {self.nodes[reply.metadata.src_node_id]: _upload(reply.content) for reply in good}
        self._state = self._algorithm.aggregate(self._state, dict(sorted(uploads.items())))
        replied = [self.nodes[reply.metadata.src_node_id] for reply in replies if reply.has_content()]
        self._log.add_uploads(sorted(uploads), replied)
        if not any(self._weight(reply.content) for reply in good):
            return None, None
        return None, self.train_metrics_aggr_fn([reply.content for reply in good], self.weighted_by_key)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let every node evaluate its own model."""
        messages = list(super().configure_evaluate(server_round, arrays, config, grid))
        return [self._message(m.metadata.dst_node_id, MessageType.EVALUATE, config, {}) for m in messages]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average what nodes say of their own models, weighted as ever."""
        usable = _alike([reply for reply in replies if _is_usable(reply, self._weight_fault_of)])
        self._log.add_scores(usable, self.nodes, self.weighted_by_key)
        has_weight = any(self._weight(reply.content) for reply in usable if reply.has_content())
        return super().aggregate_evaluate(server_round, usable) if has_weight else None

    def _train_message(self, node: int, server_round: int, config: ConfigRecord) -> Message:
        slot = self._slot(node)
        rng = stream(self._seed, "dispatch", server_round - 1, slot)
        download = self._algorithm.configure_client(self._state, slot, rng)
        ids: list[int] = download.ids.tolist()
        records: dict[str, Any] = {f"{CANDIDATE}{place}": self._model(giver) for place, giver in enumerate(ids)}
        coded = self._algorithm if isinstance(self._algorithm, FedFomoAsCoded) else None
        ways = {"norm": coded.norm if coded else "l2", "affinity_update": coded.affinity_update if coded else "raw"}
        records[CANDIDATES] = ConfigRecord({"ids": ids, "own": slot, **ways})
        return self._message(node, MessageType.TRAIN, config, records)

    def _message(self, node: int, kind: str, config: ConfigRecord, records: dict[str, Any]) -> Message:
        own = self._model(self._slot(node))
        content = RecordDict({self.arrayrecord_key: own, self.configrecord_key: config, **records})
        return Message(content, node, kind)

    def _model(self, slot: int) -> ArrayRecord:
        if self._initial is None:
            return ArrayRecord()
        theta = self._state.models.get(slot)
        return self._initial if theta is None else unflatten(theta, self._initial)

    def _slot(self, node: int) -> int:
        slot = self.nodes.setdefault(node, len(self.nodes))
        size = self._state.affinity.size
        require(slot < size, f"more than {size} nodes: give FedFomoStrategy a larger max_nodes")
        return slot

    def _fault_of(self, content: RecordDict) -> str | None:
        initial = self._initial or ArrayRecord()
        (arrays,) = content.array_records.values()
        fault = misfit(arrays, initial)
        if fault is not None:
            return fault
        upload = _upload(content)
        fault = self._weight_fault_of(content)
        fault = fault or messages.validate(Upload, upload, len(flatten(initial)[0]), self._state.affinity.size)
        return fault or self._algorithm.validate(self._state, upload)

    def _weight_fault_of(self, content: RecordDict) -> str | None:
        return None if 0 <= self._weight(content) < math.inf else f"its '{self.weighted_by_key}' is no weight"

    def _weight(self, content: RecordDict) -> float:
        (metrics,) = content.metric_records.values()
        return float(metrics[self.weighted_by_key])  # pyright: ignore[reportArgumentType]


def fedfomo_mod(loss: LossFunction) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """Return the mod: evaluate, mix, let the app train, report; messages that carry no candidates pass untouched."""

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        if CANDIDATES not in message.content:
            return call_next(message, context)
        key = next(name for name in message.content.array_records if not name.startswith(CANDIDATE))
        mixed, findings = _federated_update(message, context, key, loss)
        for name in [name for name in message.content if name.startswith(CANDIDATE) or name == CANDIDATES]:
            del message.content[name]
        message.content[key] = mixed
        reply = call_next(message, context)
        if reply.has_content():
            context.state[REFERENCE] = mixed
            context.state[OWN] = next(iter(reply.content.array_records.values()))
            reply.content[FINDINGS] = findings
        return reply

    return mod


def _federated_update(
    message: Message, context: Context, key: str, loss: LossFunction
) -> tuple[ArrayRecord, ConfigRecord]:
    """Move from the reference towards the candidates that lower the loss; see `FedFomo.personalise`."""
    sent, facts = message.content.array_records[key], message.content.config_records[CANDIDATES]
    # A node that has lost its memory starts again from what the server has of it.
    reference = context.state.array_records.get(REFERENCE, sent)
    ids: list[int] = [int(facts["own"]), *facts["ids"]]  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
    others = [message.content.array_records[f"{CANDIDATE}{place}"] for place in range(len(ids) - 1)]
    candidates = [context.state.array_records.get(OWN, sent), *others]
    theta, num_trainable = flatten(reference)
    models = [flatten(record)[0] for record in candidates]
    reference_loss, *losses = [float(loss(record, context)) for record in (reference, *candidates)]
    can_judge = not all(map(math.isnan, (reference_loss, *losses)))
    distances = distances_from(theta, models, num_trainable, str(facts["norm"]))
    weights, shares = weigh(reference_loss, torch.tensor(losses, dtype=torch.float64), distances, can_judge)
    mixed = unflatten(mix(theta, models, shares), reference)
    increments = affinity_increments(weights, str(facts["affinity_update"]))
    findings = {"ids": ids, "increments": increments.tolist(), "shares": shares.tolist()}
    return mixed, ConfigRecord(findings)  # pyright: ignore[reportArgumentType]


def _is_usable(reply: Message, validate: Callable[[RecordDict], str | None]) -> bool:
    """Tell whether a reply may be looked at; one that may not is named, and the round goes on without it."""
    if reply.has_error():
        return True  # FedAvg logs it
    try:
        fault = validate(reply.content)
    except Exception as error:  # whatever a forged record makes its reader raise
        fault = f"it is no answer of fedfomo_mod ({type(error).__name__})"
    if fault is not None:
        _refuse(reply, fault)
    return fault is None


def _refuse(reply: Message, fault: str) -> None:
    log.warning("node %d: refused, %s", reply.metadata.src_node_id, printable(fault))


def _alike(replies: list[Message]) -> list[Message]:
    """Leave out whose metrics are not those of most: FedAvg, which averages them, gives up if any differ."""
    forms = [repr(_form(reply.content)) if reply.has_content() else "" for reply in replies]
    usual = Counter(filter(None, forms)).most_common(1)
    taken = {"", *(form for form, _ in usual)}
    for reply, form in zip(replies, forms, strict=True):
        if form not in taken:
            _refuse(reply, "its metrics are not those of most nodes")
    return [reply for reply, form in zip(replies, forms, strict=True) if form in taken]


def _form(content: RecordDict) -> Any:
    """Return what FedAvg wants to be the same in all replies: names of records and metrics, and lengths of lists."""
    (metrics,) = content.metric_records.values()
    lengths = {name: len(value) if isinstance(value, list) else None for name, value in metrics.items()}
    return list(content.array_records), list(content.metric_records), sorted(lengths.items())


def _upload(content: RecordDict) -> Upload:
    found: Any = content.config_records[FINDINGS]
    theta, _ = flatten(next(iter(content.array_records.values())))
    increments, shares = (torch.tensor(found[name], dtype=torch.float64) for name in ("increments", "shares"))
    return Upload(theta, EvaluationWeights(torch.tensor(found["ids"], dtype=torch.int64), increments, shares))
