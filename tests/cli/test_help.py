"""What help and errors say of a command's arguments."""

import re

import pytest

from cli_calls import call, refused


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Return the help of a command in one line, without its boxes."""
    call(*command, "--help")
    return re.sub(r"[\s│]+", " ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["report"], "RUN"),
        (["export"], "RUN --site SITE"),
        (["serve"], "RUN"),
        (["resume"], "RUN"),
        (["check"], "FOLDER|FILE.py|MODULE"),
        (["runs", "frame"], "RUN…"),
        (["report", "compare"], "RUN…"),
        (["data", "get"], "NAME"),
        (["methods"], "[METHOD]"),
    ],
)
def test_arguments_are_called_by_what_they_are(
    command: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = help_of(capsys, *command)
    assert re.match(rf"usage: fedfomo {' '.join(command)} (\[.*?\] )*{re.escape(usage)} ", line), line


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["report"], "fedfomo report takes the folder of a run: fedfomo report runs/NAME"),
        (["resume"], "fedfomo resume takes the folder of a run: fedfomo resume runs/NAME"),
        (
            ["export"],
            "fedfomo export takes the folder of a run and --site SITE: fedfomo export runs/NAME --site SITE",
        ),
        (["export", "runs/mine"], "fedfomo export takes --site SITE: fedfomo export … --site SITE"),
        (["check"], "fedfomo check takes a folder of sites, a Python file or a module: fedfomo check FOLDER"),
        (["data", "get"], "fedfomo data get takes NAME (The data set): fedfomo data get NAME"),
        (["runs", "frame"], "give the folders of some runs or comparisons: fedfomo runs frame runs/NAME"),
    ],
)
def test_a_forgotten_argument_is_named_with_an_example(
    command: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *command) == f"fedfomo: {line}"


@pytest.mark.parametrize("command", ["check", "serve"])
def test_help_names_every_kind_of_file(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, command)
    assert all(
        kind in shown for kind in (".npz", ".safetensors", ".csv", ".parquet", "folder of images for each class")
    )


@pytest.mark.parametrize("command", ["report", "export", "serve"])
def test_help_says_which_method_is_meant_where_none_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, command)
    assert "by default fedfomo, and in a folder of `federate` the first that it was given" in shown
