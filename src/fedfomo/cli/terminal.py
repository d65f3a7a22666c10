"""What all commands share: reading arguments, and the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import tyro
from rich.console import Console
from rich.markup import escape

from fedfomo.errors import require, unknown
from fedfomo.runs.config import CompareConfig, RunConfig
from fedfomo.runs.config_io import build, read_table

C = TypeVar("C")
console = Console(highlight=False)


def parse(command: str, kind: type[C], arguments: list[str]) -> C:
    """Read flags over the values of a TOML file, if one comes first, over the defaults for the data set."""
    marked: Any = tyro.conf.OmitArgPrefixes[kind]
    if kind not in (RunConfig, CompareConfig):
        return tyro.cli(marked, args=arguments, prog=f"fedfomo {command}")
    table: dict[str, Any] = {}
    path = Path("flags")
    if arguments and not arguments[0].startswith("-"):
        path, arguments = Path(arguments[0]), arguments[1:]
        table = read_table(path, kind)
    for word, following in pairwise([*arguments, ""]):
        flag, equals, value = word.partition("=")
        if flag == "--dataset":
            table["dataset"] = value if equals else following
    return tyro.cli(marked, args=arguments, prog=f"fedfomo {command}", default=build(kind, table, path))


def choose(command: str, verbs: Mapping[str, Callable[[list[str]], None]], arguments: list[str]) -> None:
    """Run the verb that follows a command, or say which there are."""
    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, verbs)) + 2
        sys.stdout.write(f"usage: fedfomo {command} {'|'.join(verbs)} [--help]\n\n")
        sys.stdout.writelines(f"  {name:<{width}}{verb.__doc__}\n" for name, verb in verbs.items())
        return
    name, *rest = arguments
    if name not in verbs:
        raise unknown(f"word after '{command}':", name, verbs)
    verbs[name](rest)


def require_file(path: Path | None) -> None:
    """Refuse, before hours of work and not after, a place where no file can be written."""
    if path is not None:
        require(not path.is_dir(), f"{path} is a folder: give a file")
        require(path.parent.is_dir() or not path.parent.exists(), f"{path.parent} is a file: give a folder's file")


def warn(message: str) -> None:
    """Tell what is odd but stops nothing."""
    console.print(f"[yellow]note:[/yellow] {escape(message)}", soft_wrap=True)


def fail(message: str, code: int) -> NoReturn:
    """End with one line, whatever the names are that it quotes: on Linux, they need not be text."""
    printable = message.encode(errors="backslashreplace").decode()
    Console(stderr=True, highlight=False).print(f"fedfomo: {printable}", soft_wrap=True, markup=False)
    sys.exit(code)
