"""What is written of a finished run is read back, whatever the number of clients."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfomo.core.model import Score
from fedfomo.core.round import CommunicationCost
from fedfomo.core.sparse import SparseMatrix
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.runs.records import MATRICES, MOST_IN_JSON, RunRecord, dense_rows, read_record, write_record


def _record(matrix: SparseMatrix) -> RunRecord:
    scores = {client: Score(0.5, 0.25, 4) for client in range(matrix.size)}
    rows = dense_rows(matrix)
    return RunRecord(
        "fedfomo", {}, 0, scores, scores, CommunicationCost(), rows, rows, {}, 0, None, None, None, None, 1.0
    )


@pytest.mark.parametrize("clients", [3, MOST_IN_JSON, MOST_IN_JSON + 1])
def test_matrices_are_rows_in_json_for_few_clients_and_a_binary_file_for_many(tmp_path: Path, clients: int) -> None:
    entries = torch.tensor([1, 2]), torch.tensor([0.5, -0.25], dtype=torch.float64)
    matrix = SparseMatrix.identity(clients).add_rows({0: entries})
    directory, record = RunDirectory(tmp_path, "", print), _record(matrix)
    write_record(directory, record, {"affinity": matrix, "taken": matrix})
    is_large = clients > MOST_IN_JSON
    assert (tmp_path / MATRICES).exists() == is_large
    assert (json.loads((tmp_path / "result.json").read_text())["affinity"] is None) == is_large
    assert read_record(tmp_path) == record
    directory.close()


def test_a_matrix_that_a_method_does_not_have_stays_away(tmp_path: Path) -> None:
    matrix = SparseMatrix.identity(MOST_IN_JSON + 1)
    directory = RunDirectory(tmp_path, "", print)
    write_record(directory, _record(matrix), {"affinity": None, "taken": matrix})
    assert read_record(tmp_path).taken == matrix.dense().tolist()
    directory.close()


def test_numbers_of_numpy_are_written_and_what_is_not_a_number_is_null(tmp_path: Path) -> None:
    scores = {0: Score(math.nan, np.float64(0.25), 4, {"auc": np.float64("nan"), "f1": 0.1})}
    directory = RunDirectory(tmp_path, "", print)
    record = replace(_record(SparseMatrix.identity(1)), after_update=scores, refusals={3: 1})
    write_record(directory, record, {})
    directory.close()
    written = json.loads((tmp_path / "result.json").read_text())
    score = {"loss": None, "metric": 0.25, "num_examples": 4, "metrics": {"auc": None, "f1": 0.1}}
    assert (written["after_update"], written["refusals"]) == ({"0": score}, {"3": 1})
