"""The worked examples work, and show what they say."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


def run(code: list[str], folder: Path) -> str:
    done = subprocess.run([sys.executable, *code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hospitals_tell_tumours_apart(tmp_path: Path) -> None:
    printed = run([str(EXAMPLES / "breast_cancer.py")], tmp_path)
    [bergen] = [line for line in printed.splitlines() if line.startswith("Bergen: ")]
    assert "Keep your own model" not in bergen
    assert re.search("learned from (Porto|Gdansk)", bergen)
    assert (tmp_path / "breast_cancer" / "report.html").exists()
    assert load_file(tmp_path / "breast_cancer" / "Bergen.safetensors")


def test_hospitals_are_brought_to_scale_by_training_records_alone() -> None:
    trained_on = torch.cat([train[0] for train, _ in example("breast_cancer.py")["sites"]().values()])
    assert torch.allclose(trained_on.mean(dim=0), torch.zeros(30), atol=1e-5)
    assert torch.allclose(trained_on.std(dim=0), torch.ones(30), atol=1e-5)


def test_the_training_script_of_one_site_is_poor_at_what_it_does_not_train_on(tmp_path: Path) -> None:
    printed = run([str(EXAMPLES / "training_script.py"), "Cork"], tmp_path)
    assert 0.5 < float(printed.removeprefix("Cork: AUC ")) < 0.85


def test_clinics_predict_from_tables_with_words(tmp_path: Path) -> None:
    printed = run([str(EXAMPLES / "diabetes_tables.py")], tmp_path)
    assert re.search(r"^Delft: absolute error [\d.]+ instead of [\d.]+ \(gain ", printed, re.MULTILINE)
    assert (tmp_path / "clinics" / "Delft" / "train.csv").read_text().count("female") > 5
    assert (tmp_path / "diabetes_report.html").exists()


def test_nodes_of_the_flower_app_are_not_tested_on_what_chose_their_mixture() -> None:
    parts = example("flower_app/flower_app/task.py")["load_data"](0)
    rows = [{tuple(row) for row in inputs.tolist()} for inputs, _ in parts]
    assert len(rows) == 3
    assert sum(map(len, rows)) == len(set().union(*rows))


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "post_offices.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    (tmp_path / "notebook.py").write_text("\n\n".join(cells))
    printed = run(["notebook.py"], tmp_path)
    [island] = [line for line in printed.splitlines() if line.startswith("Island: ") and " right" in line]
    assert "Keep your own model" not in island
    assert (tmp_path / "post_offices.html").exists()
