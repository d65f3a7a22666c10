"""The page of FedFomo+ says what its files say; the search judges by examples that nobody has seen."""

import io
import json
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.fedfomo_plus.page import BLOCK, BLOCKS, PAGE, filled, signed, table
from experiments.fedfomo_plus.search import held_out_of
from experiments.fedfomo_plus.variants import BESIDE, VARIANTS
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.setup import prepare
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import points_problem

ROOT = Path(__file__).parents[2]
OF_REGIMES = ("claim", "images", "guide")
"""Blocks of cells that are computed all the time: `python -m experiments.iclr2021 pages` writes them anew."""


def test_the_committed_page_has_every_block_and_those_of_its_own_files_are_up_to_date(tmp_path: Path) -> None:
    # What is committed, not what lies about: runs may be appending lines at this moment.
    kept = ("results/fedfomo_plus", "results/trust", str(PAGE))
    archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD", *kept], capture_output=True)
    if archive.returncode:
        pytest.skip("this is no repository")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path, filter="data")
    text = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert sorted(block[1] for block in BLOCK.finditer(text)) == sorted(BLOCKS)
    anew = {block[1]: block[0] for block in BLOCK.finditer(filled(text, tmp_path / "results"))}
    stale = [block[1] for block in BLOCK.finditer(text) if block[0] != anew[block[1]] and block[1] not in OF_REGIMES]
    assert not stale, "run `python -m experiments.fedfomo_plus.page`"


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    text = "<!-- begin cost -->\nold\n<!-- end cost -->"
    assert filled(text, tmp_path) == "<!-- begin cost -->\nNothing of this has been computed yet.\n<!-- end cost -->"


def test_ablations_are_differences_on_common_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "fedfomo_plus"
    folder.mkdir()
    runs = [("FedFomo+", 100, 60.0), ("FedFomo+", 101, 70.0), ("γ = 1", 101, 68.5), ("no history", 7, 1.0)]
    lines = [{"regime": "D = 2", "seed": s, "variant": v, "accuracy": a, "seconds": 1.0} for v, s, a in runs]
    (folder / "search.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = BLOCKS["ablations"](tmp_path).splitlines()
    assert rows[2:] == ["| FedFomo+, accuracy in % | 65.0 |", "| γ = 1 | −1.5 |", "| seeds | 2 |"]


def test_tables_and_signs() -> None:
    assert table(("a", "b"), [("x", "1")]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
    assert [signed(value) for value in (0.04, -0.04, -1.26, 2.0)] == ["0.0", "0.0", "−1.3", "+2.0"]


def test_scores_are_of_examples_that_clients_hold_in_no_part() -> None:
    setting = ExperimentConfig(scenario=ScenarioConfig("ood", clients=4, distributions=2, data_fraction=0.5), workers=0)
    problem, simulation = held_out_of(setting, 100)
    whole = prepare(replace(setting, scenario=replace(setting.scenario, data_fraction=1.0)), 100).problem
    assert simulation.evaluate_every == simulation.rounds
    for client, complete in zip(problem.clients, whole.clients, strict=True):
        seen = torch.cat([client.train.inputs, client.validation.inputs]).flatten(1)
        fresh = client.test.inputs.flatten(1)
        assert len(fresh) == len(complete.validation) - len(client.validation) > 0
        assert int((fresh[:, None] == seen[None]).all(-1).any(1).sum()) <= 1  # digits has a few images twice
        target = complete.validation.inputs.flatten(1)
        assert bool((fresh[:, None] == target[None]).all(-1).any(1).all())  # of its target's distribution


@pytest.mark.parametrize("name", [name for name in {**VARIANTS, **BESIDE} if name != "oracle clusters"])
def test_every_variant_runs(name: str) -> None:
    result = simulate(points_problem(), {**VARIANTS, **BESIDE}[name], SimulationConfig(rounds=3, participation=0.5))
    assert all(bool(torch.isfinite(model).all()) for model in result.models.values())
