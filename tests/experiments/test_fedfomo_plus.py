"""The page of FedFomo+ says what its files say; the search judges by examples that nobody has seen."""

import io
import json
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.fedfomo_plus.page import BLOCKS, pages
from experiments.fedfomo_plus.search import held_out_of
from experiments.fedfomo_plus.variants import BESIDE, VARIANTS
from experiments.markdown import BLOCK, filled, signed, table
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.errors import InputError
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.setup import prepare
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import points_problem

ROOT = Path(__file__).parents[2]
OF_REGIMES = ("claim", "images", "full", "guide")
"""Blocks of cells that are computed all the time: `python -m experiments.iclr2021 pages` writes them anew."""


def test_the_committed_pages_have_every_block_and_those_of_their_own_files_are_up_to_date(tmp_path: Path) -> None:
    # What is committed, not what lies about: runs may be appending lines at this moment.
    kept = ("results/fedfomo_plus", "results/trust", *map(str, pages()))
    archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD", *kept], capture_output=True)
    if archive.returncode:
        pytest.skip("this is no repository")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tmp_path, filter="data")
    for page, blocks in pages().items():
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert sorted(block[1] for block in BLOCK.finditer(text)) == sorted(blocks)
        of_own_files = {name: block for name, block in blocks.items() if name not in OF_REGIMES}
        written = {block[1]: block[0] for block in BLOCK.finditer(text)}
        for name, block in of_own_files.items():
            now = f"<!-- begin {name} -->\n{block(tmp_path / 'results')}\n<!-- end {name} -->"
            assert written[name] == now, "run `python -m experiments.fedfomo_plus.page`"


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    assert all(
        "Nothing has been computed yet." in block(tmp_path) for blocks in pages().values() for block in blocks.values()
    )


def test_a_page_with_an_unknown_or_open_block_is_refused() -> None:
    text = "<!-- begin cost -->\nold\n<!-- end cost -->"
    assert filled(text, {"cost": lambda: "new"}) == "<!-- begin cost -->\nnew\n<!-- end cost -->"
    with pytest.raises(InputError, match="unknown block of results 'cost'"):
        filled(text, {})
    with pytest.raises(InputError, match="not closed"):
        filled("<!-- begin cost -->\nold", {})


def test_ablations_are_differences_on_common_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "fedfomo_plus"
    folder.mkdir()
    runs = [("FedFomo+", 100, 60.0), ("FedFomo+", 101, 70.0), ("γ = 1", 101, 68.5), ("no history", 7, 1.0)]
    runs += [("own agreement: 1", 100, 59.0), ("own agreement: 1", 101, 68.0)]
    lines = [{"regime": "D = 2", "seed": s, "variant": v, "accuracy": a, "seconds": 1.0} for v, s, a in runs]
    (folder / "search.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = BLOCKS["ablations"](tmp_path).splitlines()
    assert rows[2:] == [
        "| FedFomo+, accuracy in % | 65.0 |",
        "| γ = 1 | −1.5* |",  # on one of the two seeds
        "| own agreement: 1 | −1.5 |",
        "| seeds | 2 |",
    ]


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
