"""What a check takes from a Python file, and the flags that say how tables are read."""

from pathlib import Path

import pytest

from cli_calls import call, refused

MODULE = """
import torch
from torch import nn


def part(seed):
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.tensor([50_000.0, 1.0]) * torch.rand(40, 2, generator=rng)
    return inputs, inputs.sum(1)


sites = {"leeds": (part(0), part(1)), "turin": (part(2), part(3))}


def make_model():
    return nn.Linear(2, 1)


def loss(outputs, labels):
    return (outputs[:, 0] - labels) ** 2


def r2(outputs, labels):
    return 1 - float(((outputs[:, 0] - labels) ** 2).mean() / labels.var())


metrics = {"r2": r2}
"""

TABLE = "patient,code,age,outcome\n" + "".join(
    f"A{row},{row % 3},{30 + row % 9},{'ill' if row % 2 else 'well'}\n" for row in range(40)
)


def printed_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    call("check", *arguments)
    return capsys.readouterr().out


def test_a_file_is_checked_by_its_own_metrics_scale_and_division(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODULE)
    printed = printed_by(capsys, str(file))
    assert "no accuracy" not in printed
    assert "unscaled columns of the inputs" in printed
    assert "40       20      20" in printed
    file.write_text(MODULE + "standardise = True\nvalidation_fraction = 0.25\n")
    printed = printed_by(capsys, str(file))
    assert "unscaled" not in printed
    assert "40       10      30" in printed
    assert "40       30      10" in printed_by(capsys, str(file), "--validation-fraction", "0.75")


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ('primary = "auc"', "there is no metric 'auc' to go by"),
        ("standardise = 3", "standardise is True, False or a Standardise, not 3"),
        ("trainer = 3", "must be an object such as fedfomo.Sgd"),
    ],
)
def test_what_a_file_says_wrongly_is_refused(
    odd: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{MODULE}{odd}\n")
    assert words in refused(capsys, "check", str(file))


def test_tables_are_read_as_flags_say_and_messages_name_these(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in ("leeds", "turin"):
        (tmp_path / site).mkdir()
        for part in ("train", "target"):
            (tmp_path / site / f"{part}.csv").write_text(TABLE)
    folder = str(tmp_path)
    assert "one of them must be called label, or name another with --label" in refused(capsys, "check", folder)
    flags = ("--label", "outcome", "--drop", "patient", "--categories", "code")
    assert "2 sites can federate" in printed_by(capsys, folder, *flags)
    (tmp_path / "turin" / "train.csv").write_text(TABLE.replace(",2,", ",x,"))
    line = refused(capsys, "check", folder, "--label", "outcome", "--drop", "patient")
    assert "say that the column holds words, with --categories code" in line
    (tmp_path / "mine.py").write_text(MODULE)
    line = refused(capsys, "check", str(tmp_path / "mine.py"), "--label", "outcome")
    assert "reads its sites by itself: leave out the flags that say how files are read" in line
