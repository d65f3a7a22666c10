"""Final models are found again, in files of their own or in those of a group."""

from pathlib import Path

import pytest
import torch

from fedfomo.core.metrics import Score
from fedfomo.core.model import Model
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.errors import InputError
from fedfomo.runs import final_models
from fedfomo.runs.final_models import load_models, read_model, write_models
from fedfomo.runs.records import RunRecord
from toy_problems import perceptron


def record_of(clients: int) -> RunRecord:
    record = object.__new__(RunRecord)
    object.__setattr__(record, "after_update", {client: Score(0.0, 1.0, 1) for client in range(clients)})
    return record


@pytest.mark.parametrize(("most", "files"), [(7, 7), (6, 3)])
def test_models_come_back_as_they_were(most: int, files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_models, "MOST_FILES", most)
    monkeypatch.setattr(final_models, "GROUP", 3)
    model, directory = Model(perceptron()), RunDirectory(tmp_path, "", print)
    thetas = {client: model.read() + client for client in range(7)}
    write_models(directory, thetas, model)
    directory.sync()
    directory.close()
    assert len(list((tmp_path / "models").iterdir())) == files
    found = load_models(tmp_path, model, record_of(7))
    assert found is not None
    assert all(torch.equal(found[client], theta) for client, theta in thetas.items())
    for name, tensor in model.state_dict(thetas[5]).items():
        assert torch.equal(read_model(tmp_path, 5)[name], tensor)
    assert load_models(tmp_path, model, record_of(8)) is None
    with pytest.raises(InputError, match="not a whole file"):
        read_model(tmp_path, 9)


def test_models_that_earlier_versions_wrote_are_read(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, "", print)
    named = {f"{client}:{name}": torch.full((2,), float(client)) for client in range(3) for name in ("a", "b")}
    directory.write_tensors("models/clients-from-00000.safetensors", named)
    directory.close()
    assert {name: tensor.tolist() for name, tensor in read_model(tmp_path, 2).items()} == {"a": [2, 2], "b": [2, 2]}


def test_large_models_are_not_gathered_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_models, "MOST_FILES", 1)
    monkeypatch.setattr(final_models, "MOST_GROUPED", 100)
    model, directory = Model(perceptron()), RunDirectory(tmp_path, "", print)
    write_models(directory, dict.fromkeys(range(3), model.read()), model)
    directory.close()
    assert len(list((tmp_path / "models").iterdir())) == 3
