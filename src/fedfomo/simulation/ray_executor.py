"""Workers on more than one machine: one Ray actor for every core that is asked for.

No file system is shared. With a batch go the tensors that it names, as safetensors under the names of their files;
back come the results and their file, which this process puts beside its own. Batches and files are those of worker
processes, and so is every bit. What never changes (data, network, method) is sent once by
Ray itself, which pickles it: a Ray cluster runs whatever its users send, so it must be the user's own.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from fedfomo.core.messages import Flat
from fedfomo.core.model import Model
from fedfomo.core.user_code import OWN_MODULES
from fedfomo.engine.tensor_store import TensorStore
from fedfomo.errors import InputError, require
from fedfomo.simulation.executors import (
    WorkerError,
    WorkerLostError,
    describe_clients,
    read_batch,
    read_reply,
    run_or_describe_error,
    to_json,
)
from fedfomo.simulation.process_utils import use_huge_pages
from fedfomo.simulation.scheduling import Batch, BatchResult
from fedfomo.simulation.worker import ClientRunner

MakeRunner = Callable[[TensorStore], ClientRunner]


class RayExecutor:
    """Ray actors, each busy with one batch at a time."""

    def __init__(self, make_runner: MakeRunner, files: TensorStore, num_workers: int) -> None:
        self._ray = _import_ray()
        self._files = files.reopen()
        self._actors: list[Any] = []
        self._owns_cluster = connect(self._ray, num_workers)
        try:
            self._start_actors(make_runner, num_workers)
        except BaseException:
            self.close()
            raise

    def run_batches(self, batches: Iterable[Batch]) -> Iterator[BatchResult]:
        """Give each idle actor the next batch, in the sequence given."""
        waiting = iter(batches)
        busy: dict[Any, tuple[Any, Batch]] = {}  # by what Ray promises to deliver
        self._files.forget()  # the batches of one call read the same files; those of the next have others
        try:
            for actor in self._actors:
                self._assign(actor, next(waiting, None), busy)
            while busy:
                for promise in self._ray.wait(list(busy))[0]:
                    actor, batch = busy.pop(promise)
                    result = self._receive(promise, batch)
                    self._assign(actor, next(waiting, None), busy)
                    yield result
        finally:
            if busy:  # interrupted: what the actors are doing is of no use any more
                self.close()

    def close(self) -> None:
        """End the actors at once, and leave or stop the cluster if it was entered or started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._owns_cluster:
            self._ray.shutdown()
        self._owns_cluster = False

    def _start_actors(self, make_runner: MakeRunner, num_workers: int) -> None:
        ray = self._ray
        cores = int(ray.cluster_resources().get("CPU", 0))
        require(num_workers <= cores, f"{num_workers} workers for a Ray cluster of {cores} cores: lower --workers")
        for name, module in [*sys.modules.items()]:
            if name.startswith(OWN_MODULES):  # a user's file, which workers elsewhere cannot import
                ray.cloudpickle.register_pickle_by_value(module)
        ray.util.register_serializer(Model, serializer=serialise_model, deserializer=deserialise_model)
        given = ray.put(make_runner)
        actor = ray.remote(num_cpus=1)(_Actor)
        self._actors = [actor.remote(given) for _ in range(num_workers)]
        try:
            found: list[str] = ray.get([actor.versions.remote() for actor in self._actors])
        except ray.exceptions.RayError as error:
            raise WorkerError(f"a Ray worker could not start:\n{error}") from None
        for theirs in found:  # other versions, other bits
            require(theirs == _versions(), f"a Ray worker has {theirs}, this process {_versions()}: install the same")

    def _assign(self, actor: Any, batch: Batch | None, busy: dict[Any, tuple[Any, Batch]]) -> None:
        if batch is not None:
            busy[actor.run_batch.remote(to_json(batch), collect_tensors(batch, self._files))] = actor, batch

    def _receive(self, promise: Any, batch: Batch) -> BatchResult:
        try:
            content, written = self._ray.get(promise)
        except self._ray.exceptions.RayTaskError as error:  # what went wrong with clients themselves is in a reply
            raise WorkerError(
                f"a Ray worker failed over {describe_clients(batch)} in round {batch.round}:\n{error}"
            ) from None
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError(
                f"a Ray worker was lost with {describe_clients(batch)} in round {batch.round} ({_first_line(error)});"
                " its machine may be gone, or memory may have run out"
            ) from None
        result = read_reply(content, batch)
        for file, tensors in written.items():
            self._files.save(file, load(tensors))
        checksums, self._files.checksums = self._files.checksums, {}
        return BatchResult(result.results, checksums, result.seconds)


def collect_tensors(batch: Batch, files: TensorStore) -> dict[str, bytes]:
    """Return the files that a batch names, each with no more than the tensors that it names."""
    sent: dict[str, Flat] = {}
    for job in batch.jobs:
        tensors = files.load({place: place for place in job.places() if not place.startswith("=")})
        for place, tensor in tensors.items():
            file, name = place.split("#", 1)
            sent.setdefault(file, {})[name] = tensor
    return {file: save(flat) for file, flat in sent.items()}


class _Actor:
    """Runs clients in a process somewhere; of a batch nothing stays behind."""

    def __init__(self, make_runner: MakeRunner) -> None:
        torch.set_num_threads(1)
        use_huge_pages()
        self._files = TensorStore(Path(tempfile.gettempdir()), durable=False)
        self._runner = make_runner(self._files)

    def versions(self) -> str:
        return _versions()

    def run_batch(self, batch: bytes, sent: dict[str, bytes]) -> tuple[bytes, dict[str, bytes]]:
        with tempfile.TemporaryDirectory(prefix="fedfomo-") as folder:
            self._files.folder = Path(folder)
            for name, tensors in sent.items():
                (self._files.folder / name).write_bytes(tensors)
            content = to_json(run_or_describe_error(self._runner, read_batch(batch)))
            self._files.forget()  # the next batch may bring a file of the same name with other tensors
            written = [path for path in self._files.folder.iterdir() if path.name not in sent]
            return content, {path.name: path.read_bytes() for path in written}


def _import_ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("the executor 'ray' needs Ray: pip install 'fedfomo[cluster]'") from None
    return ray


def connect(ray: Any, num_workers: int) -> bool:
    """Enter the user's cluster, or start one on this machine; return False if this process is in one already."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", num_cpus=num_workers, include_dashboard=False, **quiet)
        return True
    try:
        ray.init(**quiet)
    except ConnectionError as error:
        raise InputError(f"no Ray cluster answers at RAY_ADDRESS={os.environ['RAY_ADDRESS']} ({error})") from None
    return True


def serialise_model(model: Model) -> tuple[Any, ...]:
    """Return what a model is made of: pickled whole, its parameters would no longer be views of one vector."""
    module = model.network(model.read())
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.clone()  # or each would travel with the whole vector
    return module, model.criterion, model.metrics, model.layout.channels_last, model.kept, model.precision


def deserialise_model(pieces: tuple[Any, ...]) -> Model:
    """Return a model of its own from what arrived."""
    return Model(*pieces)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".:")


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("fedfomo", "torch"))
