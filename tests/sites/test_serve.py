"""A site that comes after the run is served by the models of those that are like it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedfomo
from cli_calls import call, refused
from fedfomo.core.data import Examples
from fedfomo.core.model import Model
from fedfomo.errors import InputError
from fedfomo.sites.serve import serve_site


def part(seed: int, number: int, sign: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(number, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (sign * inputs[:, 0] > 0).long()


def network() -> nn.Module:
    return nn.Linear(4, 2)


SIGNS = {"leeds": 1, "turin": 1, "lyon": -1, "porto": -1}
SITES: dict[str, Any] = {
    name: (part(place, 40, sign), part(place + 10, 40, sign)) for place, (name, sign) in enumerate(SIGNS.items())
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "run"


@pytest.fixture(scope="module")
def federated(folder: Path) -> fedfomo.FederationResult:
    return fedfomo.federate(network, SITES, rounds=8, workers=0, out=folder)


def test_weights_are_those_of_equation_3() -> None:
    """Squared error (θ − x)², x = 0, models 1 and 4: the reference is 2.5 with loss 6.25."""

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place = nn.Parameter(torch.zeros(1))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.place - inputs

    def squares(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs[:, 0] ** 2) + 0 * labels

    model = Model(Point(), squares, lambda outputs, labels: -(outputs[:, 0] ** 2))
    models = {"a": torch.tensor([1.0]), "b": torch.tensor([4.0]), "c": torch.tensor([2.5])}
    served = serve_site(model, models, Examples(torch.zeros(5, 1), torch.zeros(5)))
    assert served.reference_loss == pytest.approx(6.25)
    assert served.losses == pytest.approx({"a": 1.0, "b": 16.0, "c": 6.25})
    # (6.25 − 1) / 1.5 for a, (6.25 − 16) / 1.5 < 0 for b, 0 for c, which is the reference itself.
    assert served.weights == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert served.model.state_dict()["place"].item() == pytest.approx(1.0)
    assert served.best == "a"


def test_every_example_is_read_once_and_the_mean_is_kept_where_nothing_is_better() -> None:
    reads: list[int] = []

    class Once(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 7

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            reads.append(index)
            return torch.zeros(4), torch.tensor(0)

    model = Model(network())
    theta = model.read()
    served = serve_site(model, {"a": theta, "b": theta.clone()}, Once())
    assert served.weights == {"a": 0.0, "b": 0.0}
    assert len(reads) - 7 <= 3, reads  # beside the one pass, those by which data and model are checked
    assert "the mean of all models" in str(served)


def test_a_new_site_takes_from_its_like(federated: fedfomo.FederationResult) -> None:
    served = federated.serve((part(50, 40, -1), part(51, 60, -1)))
    assert served.weights["lyon"] + served.weights["porto"] > 0.99
    assert served.best in ("lyon", "porto")
    assert served.scores["mixture"].metric > 0.8 > served.scores["mean"].metric
    assert "best single model" in str(served)
    assert federated.serve(part(52, 30, 1)).best in ("leeds", "turin")
    with pytest.raises(InputError, match="no validation examples"):
        federated.serve(part(52, 0, 1))


def test_the_command_serves_a_folder(
    federated: fedfomo.FederationResult, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "nice"
    site.mkdir()
    for name, seed in (("train", 60), ("target", 61)):
        inputs, labels = part(seed, 40, -1)
        save_file({"inputs": inputs, "labels": labels}, site / f"{name}.safetensors")
    words = ("serve", str(folder), "--method", "fedfomo-plus", "--site", str(site))
    assert "give the file with make_model" in refused(capsys, *words)
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\n\n\ndef make_model():\n    return nn.Linear(4, 2)\n")
    call(*words, "--model", str(file), "--out", str(tmp_path / "nice.safetensors"))
    assert "best single model: that of" in capsys.readouterr().out
    network().load_state_dict(load_file(tmp_path / "nice.safetensors"))
    assert federated.sites == tuple(SIGNS)


def test_the_command_reads_tables_as_all_sites_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words take the encoding of the run's sites, and numbers to be predicted are said to be such."""
    monkeypatch.chdir(tmp_path)
    for place, kinds in (("sites/leeds", "fm"), ("sites/turin", "fx"), ("nice", "mx")):
        Path(place).mkdir(parents=True)
        rows = "".join(f"{row},{kinds[row % 2]},{row / 2}\n" for row in range(20))
        for part_name in ("train", "target"):
            (Path(place) / f"{part_name}.csv").write_text("age,sex,stay\n" + rows)
    sites = fedfomo.load_sites("sites", "numbers", label="stay")
    assert sites.encoding is not None
    sites.encoding.write("encoding.json")
    Path("mine.py").write_text(
        'from torch import nn\n\nloss = "regression"\n\n\ndef make_model():\n    return nn.Linear(4, 1)\n'
    )
    fedfomo.federate(lambda: nn.Linear(4, 1), sites, rounds=1, workers=0, loss="regression", baselines=(), out="run")
    words = ("serve", "run", "--site", "nice", "--model", "mine.py")
    assert "name another with --label" in refused(capsys, *words)
    assert "say so with --labels numbers" in refused(capsys, *words, "--label", "stay", "--drop", "sex")
    line = refused(capsys, *words, "--label", "stay", "--labels", "numbers")
    assert "nice holds words in 'sex', which other sites may encode otherwise: give --encoding" in line
    call(*words, "--encoding", "encoding.json")
    assert "best single model: that of" in capsys.readouterr().out
