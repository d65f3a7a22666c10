"""A Ray cluster does what worker processes do, to the bit; here it is one of two cores on this machine."""

import os
import pickle
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfomo.algorithms import make_algorithm
from fedfomo.core import messages
from fedfomo.core.data import Examples
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.engine.tensor_store import TensorStore
from fedfomo.errors import InputError
from fedfomo.privacy.accountant import Query, epsilon_of, to_rows
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config import RunConfig
from fedfomo.runs.config_io import build
from fedfomo.runs.run import _digest
from fedfomo.runs.setup import prepare
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.executors import WorkerError, WorkerLostError, read_reply, to_json
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.ray_executor import _Actor, collect_tensors, deserialise_model, serialise_model
from fedfomo.simulation.scheduling import Batch, ClientJob
from fedfomo.simulation.simulate import simulate
from fedfomo.simulation.worker import ClientRunner, RunSetup
from fedfomo.testing.toy_federation import digest_of
from toy_problems import gradient_at, perceptron, points_problem, with_batch_norm

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time

TWO_WORKERS = SimulationConfig(rounds=2, workers=2, executor="ray")

CASES: dict[str, tuple[str, Callable[[], nn.Module], SimulationConfig]] = {
    "fedfomo": ("fedfomo", perceptron, TWO_WORKERS),
    "fedavg among half of the clients": ("fedavg", with_batch_norm, replace(TWO_WORKERS, participation=0.5)),
    "fedfomo, stacked": ("fedfomo", perceptron, replace(TWO_WORKERS, vectorise=True)),
}


def _run(case: str, **changes: Any) -> str:
    method, build, plan = CASES[case]
    return digest_of(simulate(points_problem(build=build), make_algorithm(method), replace(plan, **changes)))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'fedfomo\[cluster\]'"):
        _run("fedfomo")


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("nobody there")  # what Ray says, after minutes

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with pytest.raises(InputError, match=r"no Ray cluster answers at RAY_ADDRESS=head:6379 \(nobody there\)"):
        _run("fedfomo")


def test_other_executors_are_refused_and_none_is_part_of_what_a_run_is() -> None:
    with pytest.raises(InputError, match="'executor' in flags must be processes or ray, not 'rya'"):
        build(RunConfig, {"executor": "rya"})
    with pytest.raises(InputError, match="executor must be processes or ray, not 'rya'"):
        SimulationConfig(executor="rya")  # type: ignore[arg-type]
    config = build(RunConfig, {"executor": "ray", "workers": 7})
    prepared = prepare(config.setting, config.seed)
    assert (prepared.simulation.executor, prepared.simulation.workers) == ("ray", 7)
    assert _digest(config, prepared) == _digest(RunConfig(), prepared)


def test_a_model_survives_the_journey() -> None:
    torch.manual_seed(0)
    tied = nn.Linear(6, 6)
    module = nn.Sequential(nn.Conv2d(3, 6, 2), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(54, 6), tied, nn.ReLU(), tied)
    model = Model(module, channels_last=True)
    examples = Examples(torch.randn(5, 3, 4, 4), torch.arange(5))
    theta = model.read()
    content = pickle.dumps(serialise_model(model))
    arrived = deserialise_model(pickle.loads(content))  # noqa: S301
    assert len(content) < 4 * len(theta) + 20_000  # every parameter once
    assert arrived.layout == model.layout
    assert torch.equal(arrived.read(), theta)
    assert torch.equal(gradient_at(arrived, theta, examples), gradient_at(model, theta, examples))
    assert arrived.score(theta, examples) == model.score(theta, examples)


def test_a_client_without_budget_finds_the_model_that_it_is_left_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfomo.simulation.ray_executor.use_huge_pages", lambda: None)  # this process is no actor
    problem, algorithm = points_problem(), make_algorithm("fedavg")
    # A round is three noisy looks at batches of 5 of 12 examples; the budget is one round's, and it is spent.
    paid = {Query("training", 1.0, 5 / 12): 3}
    privacy = Privacy(noise=1.0, delta=1e-3, budget=epsilon_of(paid, "training", 1e-3))
    start, files = problem.start(2), TensorStore(tmp_path, durable=False)
    download = algorithm.configure_client(algorithm.start_server(start), 0, stream(0, "dispatch"))
    theta = torch.linspace(-1, 1, len(problem.initial))
    job = ClientJob(
        client=0,
        download=files.save("download.safetensors", messages.pack(download)),
        memory=files.save("memory.safetensors", messages.pack(algorithm.start_client(start))),
        trains=True,
        is_scored=True,
        ledger=to_rows(paid),
        attempts=1,
        model=files.save("model.safetensors", {"": theta}),
    )
    batch = Batch(1, [job], "results.safetensors")
    setup = RunSetup.of(replace(problem, privacy=privacy), algorithm, 2, may_stack=False)
    actor = _Actor(partial(ClientRunner, setup))
    content, _ = actor.run_batch(to_json(batch), collect_tensors(batch, files))
    [result] = read_reply(content, batch).results
    assert result.exceeds_budget
    assert torch.equal(files.load(result.model)[""], theta)
    assert result.score_after_update == problem.model.score(theta, problem.clients[0].test)


HOST = """
import sys, ray
from fedfomo.simulation.ray_executor import connect
connect(ray, 2)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Let another process start a cluster of two cores as a run would, and point runs to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex())  # or Ray leaves one in the home folder
        host = subprocess.Popen([sys.executable, "-c", HOST], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
        assert host.stdout is not None
        address = host.stdout.readline().strip()
        if not address:
            reason = host.communicate()[1]
            assert "node timed out during startup" in reason, reason
            pytest.skip("this machine is too busy: Ray allows its helpers 15 seconds to start")
        patch.setenv("RAY_ADDRESS", address)
        yield
        host.communicate()


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_one_process_and_of_several(cluster: None, case: str) -> None:
    assert _run(case) == _run(case, executor="processes") == _run(case, executor="processes", workers=0)


class _Stop(Callback):
    """Stops a run, as Ctrl-C would, if asked to: in the midst of a round, or after it."""

    def __init__(self, stop: str = "never") -> None:
        self.rounds_done = -1
        self._stop = stop

    def start(self, rounds_done: int) -> None:
        self.rounds_done = rounds_done

    def client_done(self, round: int, client: int) -> None:
        if self._stop == "in the midst":
            raise KeyboardInterrupt

    def round_done(self, finished: FinishedRound) -> None:
        if self._stop == "after a round":
            raise KeyboardInterrupt


def test_a_batch_brings_all_that_its_clients_read(tmp_path: Path) -> None:
    files = TensorStore(tmp_path, durable=False)
    kept = {name: files.save(f"{name}.safetensors", {"": torch.ones(2000)}) for name in ("download", "memory", "model")}
    job = ClientJob(0, kept["download"], kept["memory"], True, True, [], 1, kept["model"])
    sent = collect_tensors(Batch(1, [job], "out"), files)
    assert set(sent) == {"download.safetensors", "memory.safetensors", "model.safetensors"}


def test_a_run_can_go_on_in_other_hands(cluster: None, tmp_path: Path) -> None:
    home = RunDirectory(tmp_path, "a", pytest.fail)  # it would be told of files that are not what they were
    problem, algorithm = points_problem(), make_algorithm("fedfomo")
    with pytest.raises(KeyboardInterrupt):
        simulate(problem, algorithm, replace(TWO_WORKERS, workers=1), home, _Stop(stop="after a round"))
    alone, heard = SimulationConfig(rounds=2), _Stop()
    result = simulate(problem, algorithm, alone, home, heard)
    home.close()
    assert heard.rounds_done == 1
    assert digest_of(result) == digest_of(simulate(problem, algorithm, alone))


def test_a_cluster_that_was_entered_before_is_not_left(cluster: None) -> None:
    import ray

    problem, algorithm = points_problem(), make_algorithm("fedavg")
    ray.init(log_to_driver=False)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(problem, algorithm, TWO_WORKERS, callback=_Stop(stop="in the midst"))
        deadline = time.monotonic() + 60
        while ray.available_resources().get("CPU") != 2:  # the actors are gone, though
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(InputError, match="3 workers for a Ray cluster of 2 cores"):
            simulate(problem, algorithm, replace(TWO_WORKERS, workers=3))
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def _with_trouble(trouble: Callable[[], None]) -> FederatedProblem:
    """Return a federation in which client 3, known by its 11 examples, gets into trouble in the second round."""

    class Troubled(Sgd):
        def train(self, model: Model, task: TrainingJob) -> Tensor:
            if task.round == 1 and len(task.examples) == 11:
                trouble()
            return Sgd.train(self, model, task)

    return replace(points_problem(sizes={3: (11, 4)}), trainer=Troubled(batch_size=5, epochs=1))


def test_a_client_that_fails_is_named(cluster: None) -> None:
    problem = _with_trouble(lambda: print(1 // 0))  # noqa: T201
    with pytest.raises(WorkerError, match=r"(?s)client 3 failed in round 1:.*ZeroDivisionError"):
        simulate(problem, make_algorithm("fedavg"), replace(TWO_WORKERS, workers=1))


def test_an_actor_that_dies_is_reported(cluster: None) -> None:
    problem = _with_trouble(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(WorkerLostError, match="a Ray worker was lost with client 3 in round 1") as caught:
        simulate(problem, make_algorithm("fedavg"), TWO_WORKERS)
    assert "\n" not in str(caught.value)  # a command ends with one line


def test_the_command_finds_the_cluster(cluster: None, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fedfomo",
        "run",
        "--method",
        "fedavg",
        "--clients",
        "4",
        "--rounds",
        "1",
        "--epochs",
        "1",
    ]
    models: list[list[bytes]] = []
    for executor in ("ray", "processes"):
        out = tmp_path / executor
        flags = ["--executor", executor, "--workers", "1", "--out", str(out)]
        subprocess.run([*command, *flags], check=True, capture_output=True)
        models.append([path.read_bytes() for path in sorted((out / "models").iterdir())])
    assert models[0] == models[1]
