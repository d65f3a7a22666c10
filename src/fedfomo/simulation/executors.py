"""Who runs batches of clients: this process, or one process per core.

Workers are forked, so data and architecture need no copying; from then on only short JSON messages cross the
pipes, and tensors pass through files. Each worker has one torch thread: two threads in one process fight for
cores as soon as the machine is busy, and one thread everywhere makes results independent of the number of workers.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.model import Score
from fedfomo.core.open_files import reopen_files
from fedfomo.errors import InputError, is_disk_fault, sentence_of
from fedfomo.simulation.client_batching import Timings
from fedfomo.simulation.process_utils import exit_with_parent, use_huge_pages
from fedfomo.simulation.scheduling import Batch, BatchResult, ClientJob, ClientResult
from fedfomo.simulation.worker import ClientRunner

MADE_AHEAD = 8  # batches for each worker, which are no more than the names of tensors


class WorkerError(RuntimeError):
    """A worker process died or failed while it ran a batch."""


class WorkerLostError(WorkerError):
    """A worker process is gone for an unknown reason."""


class Executor(Protocol):
    """Runs batches, in any sequence."""

    def run_batches(self, batches: Iterable[Batch]) -> Iterator[BatchResult]:
        """Yield results as they become ready."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


def make_executor(make_runner: Callable[[], ClientRunner], num_workers: int) -> Executor:
    """Return an executor of that many processes; 0 means this process alone."""
    if num_workers == 0 or "fork" not in multiprocessing.get_all_start_methods():
        return SerialExecutor(make_runner())
    return ProcessExecutor(make_runner, num_workers)


class SerialExecutor:
    """Runs batches in this process, without any messages."""

    def __init__(self, runner: ClientRunner) -> None:
        self._runner = runner

    def run_batches(self, batches: Iterable[Batch]) -> Iterator[BatchResult]:
        """Run the batches one by one."""
        with one_torch_thread():
            for batch in batches:
                yield self._runner.run_batch(batch)

    def close(self) -> None:
        """There are no workers to end."""


class ProcessExecutor:
    """Forked processes, each busy with one batch at a time."""

    def __init__(self, make_runner: Callable[[], ClientRunner], num_workers: int) -> None:
        self._processes: dict[Connection, BaseProcess] = {}
        try:
            for _ in range(num_workers):
                self._start_worker(make_runner)
        except BaseException:  # the workers that did start would be waited for without end
            self.close()
            raise

    def run_batches(self, batches: Iterable[Batch]) -> Iterator[BatchResult]:
        """Give each idle worker the next batch, in the sequence given."""
        waiting = iter(batches)
        ready: deque[Batch] = deque()  # made while the workers are at work, so that none of them waits for it
        busy: dict[Connection, Batch] = {}
        try:
            for connection in self._processes:
                self._assign(connection, next(waiting, None), busy)
            while busy:
                while len(ready) < MADE_AHEAD * len(self._processes) and not wait(list(busy), timeout=0):
                    if (batch := next(waiting, None)) is None:
                        break
                    ready.append(batch)
                for connection in wait(list(busy)):
                    assert isinstance(connection, Connection)  # noqa: S101 - narrows the type
                    result = self._receive(connection, busy.pop(connection))
                    self._assign(connection, ready.popleft() if ready else next(waiting, None), busy)
                    yield result
        finally:
            if busy:  # interrupted: what the workers are doing is of no use any more
                self.close()

    def close(self) -> None:
        """End the processes at once; between rounds they hold nothing that matters."""
        for process in self._processes.values():
            process.kill()
        for connection, process in self._processes.items():
            process.join()
            connection.close()
        self._processes = {}

    def _start_worker(self, make_runner: Callable[[], ClientRunner]) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        # A pipe closes only when its last holder lets go: a worker must not hold its siblings' ends.
        inherited = [*self._processes, ours]
        # Not a daemon: those may have no processes of their own, and data sets may be read by some.
        process = context.Process(target=_work, args=(make_runner, theirs, inherited, os.getpid()))
        with theirs, warnings.catch_warnings():
            # Python warns of forking beside threads, for locks that these may hold; workers use none of those.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        self._processes[ours] = process

    def _assign(self, connection: Connection, batch: Batch | None, busy: dict[Connection, Batch]) -> None:
        if batch is not None:
            busy[connection] = batch
            with suppress(BrokenPipeError):  # `_receive` finds out why
                connection.send_bytes(to_json(batch))

    def _receive(self, connection: Connection, batch: Batch) -> BatchResult:
        try:
            content = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            process = self._processes[connection]
            process.join()
            raise WorkerLostError(
                f"a worker process died (exit code {process.exitcode}) with {describe_clients(batch)} in round"
                f" {batch.round}; memory may have run out"
            ) from None
        return read_reply(content, batch)


def _work(
    make_runner: Callable[[], ClientRunner], batches: Connection, inherited: Sequence[Connection], coordinator: int
) -> None:
    """Run batches until the other end of the pipe is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the coordinating process handles both, and ends its workers
        signal.signal(number, signal.SIG_IGN)
    exit_with_parent(coordinator)
    for connection in inherited:
        connection.close()
    reopen_files()
    torch.set_num_threads(1)
    use_huge_pages()
    gc.freeze()  # what was there before the fork stays: no need to look through it again and again
    runner = make_runner()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            batches.send_bytes(to_json(run_or_describe_error(runner, read_batch(batches.recv_bytes()))))


def run_or_describe_error(runner: ClientRunner, batch: Batch) -> Any:
    """Return the results, or in their place what went wrong."""
    try:
        return runner.run_batch(batch)
    except OSError as error:
        if is_disk_fault(error):
            return {"errno": error.errno, "path": str(error.filename)}
        return {"failure": traceback.format_exc()}
    except InputError as error:
        return {"refusal": sentence_of(error)}
    except Exception:  # handed whole to the coordinating process
        return {"failure": traceback.format_exc()}


def to_json(message: Any) -> bytes:
    """Write a batch, or the reply to one, as JSON."""
    return json.dumps(message, default=vars).encode()


def read_batch(content: bytes) -> Batch:
    """Read a batch."""
    found: dict[str, Any] = json.loads(content)
    return Batch(found["round"], [ClientJob(**job) for job in found["jobs"]], found["file"], found["for_checkpoint"])


def read_reply(content: bytes, batch: Batch) -> BatchResult:
    """Read the results of a batch; raise what went wrong."""
    found: dict[str, Any] = json.loads(content)
    if "errno" in found:
        raise OSError(found["errno"], os.strerror(found["errno"]), found["path"])
    if "refusal" in found:
        raise InputError(found["refusal"])
    if "failure" in found:
        raise WorkerError(f"{describe_clients(batch)} failed in round {batch.round}:\n{found['failure']}")
    for result in found["results"]:
        for name in ("score_after_update", "score_after_training", "score_on_validation"):
            result[name] = None if result[name] is None else Score.from_dict(result[name])
    results = [ClientResult(**result) for result in found["results"]]
    return BatchResult(results, found["checksums"], Timings(**found["seconds"]))


def describe_clients(batch: Batch) -> str:
    """Name the clients of a batch."""
    ids = [str(job.client) for job in batch.jobs]
    return f"client {ids[0]}" if len(ids) == 1 else f"one of clients {', '.join(ids)}"
