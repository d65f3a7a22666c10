"""The hands that carry out orders: this process, or one process per core.

Workers are forked, so data and architecture need no copying; from then on only short JSON messages cross the
pipes, and tensors pass through files. Each worker has one torch thread: two threads in one process fight for
cores as soon as the machine is busy, and one thread everywhere makes results independent of the crew.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.model import Score
from fedfomo.errors import InputError, is_disk_fault, sentence_of
from fedfomo.simulation.client_batching import Timings
from fedfomo.simulation.huge_pages import use_huge_pages
from fedfomo.simulation.process_utils import exit_with_parent
from fedfomo.simulation.worker import Batch, BatchResult, ClientJob, ClientResult, ClientRunner, Update


class WorkerError(RuntimeError):
    """A worker process died or failed while it carried out an order."""


class WorkerLostError(WorkerError):
    """A worker process is gone, and nobody knows why."""


class Executor(Protocol):
    """Carries out orders, in any sequence."""

    def run_batches(self, orders: Iterable[Batch]) -> Iterator[BatchResult]:
        """Yield reports as they become ready."""
        ...

    def close(self) -> None:
        """Let everybody go."""
        ...


def make_executor(client_side: Callable[[], ClientRunner], num_workers: int) -> Executor:
    """Return a crew of that many processes; 0 means this process alone."""
    if num_workers == 0 or "fork" not in multiprocessing.get_all_start_methods():
        return SerialExecutor(client_side())
    return ProcessExecutor(client_side, num_workers)


class SerialExecutor:
    """The crew of one that needs no messages."""

    def __init__(self, client_side: ClientRunner) -> None:
        self._client_side = client_side

    def run_batches(self, orders: Iterable[Batch]) -> Iterator[BatchResult]:
        """Work through the orders one by one."""
        with one_torch_thread():
            for order in orders:
                yield self._client_side.run_batch(order)

    def close(self) -> None:
        """Do nothing."""


class ProcessExecutor:
    """Forked processes, each busy with one order at a time."""

    def __init__(self, client_side: Callable[[], ClientRunner], num_workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self._processes: dict[Connection, BaseProcess] = {}
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            # A pipe closes only when its last holder lets go: a worker must not hold its siblings' ends.
            inherited = [*self._processes, ours]
            process = context.Process(target=_work, args=(client_side, theirs, inherited, os.getpid()), daemon=True)
            with warnings.catch_warnings():
                # Python warns of forking beside threads, for locks that these may hold; workers use none of those.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._processes[ours] = process

    def run_batches(self, orders: Iterable[Batch]) -> Iterator[BatchResult]:
        """Hand each idle worker the next order, in the order given."""
        waiting = iter(orders)
        busy: dict[Connection, Batch] = {}
        try:
            for connection in self._processes:
                self._assign(connection, next(waiting, None), busy)
            while busy:
                for connection in wait(list(busy)):
                    assert isinstance(connection, Connection)  # noqa: S101 - narrows the type
                    report = self._receive(connection, busy.pop(connection))
                    self._assign(connection, next(waiting, None), busy)
                    yield report
        finally:
            if busy:  # interrupted: what the workers are doing is of no use any more
                self.close()

    def close(self) -> None:
        """End the processes at once; between rounds they hold nothing that matters."""
        for connection, process in self._processes.items():
            process.kill()
            process.join()
            connection.close()
        self._processes = {}

    def _assign(self, connection: Connection, order: Batch | None, busy: dict[Connection, Batch]) -> None:
        if order is not None:
            busy[connection] = order
            with suppress(BrokenPipeError):  # `_receive` finds out why
                connection.send_bytes(to_json(order))

    def _receive(self, connection: Connection, order: Batch) -> BatchResult:
        try:
            content = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            process = self._processes[connection]
            process.join()
            raise WorkerLostError(
                f"a worker process died (exit code {process.exitcode}) with {describe_clients(order)} in round"
                f" {order.round}; memory may have run out"
            ) from None
        return read_answer(content, order)


def _work(
    client_side: Callable[[], ClientRunner], orders: Connection, inherited: Sequence[Connection], coordinator: int
) -> None:
    """Carry out orders until the other end of the pipe is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the coordinating process handles both, and ends its workers
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent(coordinator)
    for connection in inherited:
        connection.close()
    torch.set_num_threads(1)
    use_huge_pages()
    gc.freeze()  # what was there before the fork stays: no need to look through it again and again
    side = client_side()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            orders.send_bytes(to_json(answer(side, read_order(orders.recv_bytes()))))


def answer(side: ClientRunner, order: Batch) -> Any:
    """Return the report, or in its place what went wrong."""
    try:
        return side.run_batch(order)
    except OSError as error:
        if is_disk_fault(error):
            return {"errno": error.errno, "path": str(error.filename)}
        return {"failure": traceback.format_exc()}
    except InputError as error:
        return {"refusal": sentence_of(error)}
    except Exception:  # handed whole to the coordinating process
        return {"failure": traceback.format_exc()}


def to_json(message: Any) -> bytes:
    """Spell out an order, or an answer to one."""
    return json.dumps(message, default=vars).encode()


def read_order(content: bytes) -> Batch:
    """Read an order."""
    order: dict[str, Any] = json.loads(content)
    for part in order["parts"]:
        update = part["update"]
        part["update"] = update and Update(_score(update["score"]), update["gradients"], update["losses"])
    return Batch(order["round"], [ClientJob(**part) for part in order["parts"]], order["file"])


def read_answer(content: bytes, order: Batch) -> BatchResult:
    """Read the report on an order; raise what went wrong."""
    found: dict[str, Any] = json.loads(content)
    if "errno" in found:
        raise OSError(found["errno"], os.strerror(found["errno"]), found["path"])
    if "refusal" in found:
        raise InputError(found["refusal"])
    if "failure" in found:
        raise WorkerError(f"{describe_clients(order)} failed in round {order.round}:\n{found['failure']}")
    for outcome in found["outcomes"]:
        for name in ("score_after_update", "score_after_training"):
            outcome[name] = _score(outcome[name])
    outcomes = [ClientResult(**outcome) for outcome in found["outcomes"]]
    return BatchResult(outcomes, found["checksums"], Timings(**found["seconds"]))


def _score(found: dict[str, Any] | None) -> Score | None:
    return None if found is None else Score(**found)


def describe_clients(order: Batch) -> str:
    """Say whose order it is."""
    ids = [str(part.client) for part in order.parts]
    return f"client {ids[0]}" if len(ids) == 1 else f"one of clients {', '.join(ids)}"
