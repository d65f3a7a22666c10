"""Runs in bfloat16: networks compute in it, and nothing else does."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from cli_calls import SMALL, call, refused
from fedfomo import testing
from fedfomo.algorithms import make_algorithm
from fedfomo.core import device
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.privacy.config import Privacy
from fedfomo.runs import provenance
from fedfomo.runs.config import ExperimentConfig, RunConfig
from fedfomo.runs.run import run_or_resume, start_run
from fedfomo.runs.setup import prepare
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from fedfomo.testing import toy_federation
from toy_problems import perceptron, points, points_problem

BF16 = ("--precision", "bf16")


@pytest.fixture(autouse=True)
def instructions(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Let every processor pass for one that computes in bfloat16: where it does not, torch emulates it."""

    def pretend(name: str | None) -> None:
        for module in (device, provenance):
            monkeypatch.setattr(module, "bfloat16_instructions", lambda: name)

    pretend(device.bfloat16_instructions() or "avx512_bf16")
    return pretend


def small_problem(build: Callable[[], nn.Module] = perceptron) -> FederatedProblem:
    problem = points_problem(build=build)
    return replace(problem, model=Model(problem.model.architecture, precision="bf16"))


@pytest.mark.parametrize("law", testing.LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", ["fedfomo", "ditto"])
def test_law(name: str, law: testing.Law, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_federation, "Model", partial(Model, precision="bf16"))
    law(make_algorithm(name))


@pytest.mark.parametrize("name", ["fedfomo", "fedfomo-plus", "lg-fedavg", "mapper", "apfl"])
def test_parameters_and_losses_stay_float32_and_are_near_those_of_a_run_in_float32(name: str) -> None:
    config, algorithm = SimulationConfig(rounds=1), make_algorithm(name)
    exact = simulate(points_problem(), algorithm, config)
    rounded = simulate(small_problem(), algorithm, config)
    for client, model in rounded.models.items():
        assert model.dtype == torch.float32
        assert not torch.equal(model, exact.models[client])
        assert (model - exact.models[client]).abs().max() < 0.05


def test_outputs_are_rounded_and_come_as_float32_and_gradients_too() -> None:
    problem, examples = small_problem(), points(8, 0, stream(0))
    rounded = problem.model.outputs(problem.initial, examples)
    assert rounded.dtype == problem.model.backward(examples).dtype == torch.float32
    assert torch.equal(rounded, rounded.bfloat16().float())
    exact = points_problem().model.outputs(problem.initial, examples)
    assert 0 < (rounded - exact).abs().max() < 0.02


def test_it_stays_with_a_model_that_is_rebuilt_or_split() -> None:
    problem = small_problem()
    assert problem.split(make_algorithm("lg-fedavg")).model.precision == "bf16"
    assert problem.model_of(make_algorithm("mapper")).precision == "bf16"


def test_perceptrons_side_by_side_are_near_those_one_by_one() -> None:
    problem = small_problem()
    assert problem.stack_of(problem.model) is not None
    alone, together = (
        simulate(problem, make_algorithm("fedavg"), SimulationConfig(rounds=1, vectorise=vectorise)).models
        for vectorise in (False, True)
    )
    assert all((together[client] - model).abs().max() < 0.02 for client, model in alone.items())


class Stops(Callback):
    """Presses Ctrl-C after the second round."""

    def round_done(self, finished: FinishedRound) -> None:
        """Stop, if it is time."""
        if finished.round == 1:
            raise KeyboardInterrupt


def test_a_run_that_was_stopped_goes_on_in_bfloat16_to_the_same_bits(tmp_path: Path) -> None:
    setting = replace(ExperimentConfig(), precision="bf16", rounds=4, workers=0)
    setting = replace(setting, scenario=replace(setting.scenario, clients=6, distributions=2))
    results: list[str] = []
    for name, callbacks in (("whole", [None]), ("stopped", [Stops(), None])):
        prepared, folder = prepare(setting, 0), tmp_path / name
        folder.mkdir()
        start_run(RunConfig(setting=setting), folder, prepared)
        for callback in callbacks:
            try:
                record = run_or_resume(folder, prepared, callback, print)
                results.append(repr(sorted(record.after_update.items())))
            except KeyboardInterrupt:
                continue
    assert len(results) == 2
    assert results[0] == results[1]
    environment = json.loads((tmp_path / "whole" / "environment.json").read_text())
    assert (environment["precision"], environment["bf16"]) == ("bf16", device.bfloat16_instructions())


def test_it_is_part_of_what_a_run_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instructions: Callable[[str | None], None]
) -> None:
    folder = tmp_path / "run"
    call("run", *SMALL, *BF16, "--method", "fedavg", "--out", str(folder))
    assert tomllib.loads((folder / "config.toml").read_text())["precision"] == "bf16"
    (folder / "result.json").unlink()
    instructions("other instructions")
    assert "other instructions" in refused(capsys, "resume", str(folder))


def test_it_is_refused_in_words_where_it_is_emulated_or_records_are_private(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, instructions: Callable[[str | None], None]
) -> None:
    out = str(tmp_path / "run")
    private = refused(capsys, "run", *SMALL, *BF16, "--privacy.noise", "1", "--privacy.delta", "1e-5", "--out", out)
    assert "privacy clips gradients in float32: leave out --precision" in private
    with pytest.raises(InputError, match="privacy clips gradients in float32"):
        replace(small_problem(), privacy=Privacy(noise=1.0, delta=1e-5)).check(make_algorithm("fedavg"))
    instructions(None)
    assert "this processor has no bfloat16 instructions" in refused(capsys, "run", *SMALL, *BF16, "--out", out)
    assert not (tmp_path / "run").exists()
