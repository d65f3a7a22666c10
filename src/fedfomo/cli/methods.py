"""The command about methods.

Those of the library are described in `methods.json`, which `python tests/methods_table.py` writes from their classes:
to import the classes would take torch, and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated

import msgspec
import tyro

from fedfomo.cli.terminal import console, parse, warn
from fedfomo.core.method_names import Description, installed_methods, label_of
from fedfomo.errors import InputError


@dataclass(frozen=True)
class MethodsConfig:
    """List the methods; with a name, the options of that method."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[METHOD]")] = None
    """A method of the list, or one of your own: path/to/file.py:Class."""


def methods(arguments: list[str]) -> None:
    """Describe the methods."""
    config = parse("methods", MethodsConfig, arguments)
    known = described()
    if config.name is None:
        for name in dict.fromkeys((*known, *installed_methods())):
            try:
                about = known.get(name) or _describe(name)
            except InputError as error:  # a package whose method cannot be imported hides no others
                warn(str(error))
                continue
            console.print(f"[bold]{name}[/bold]  {about.summary}")
            console.print(f"    sends {about.sends}; computes {about.compute}", style="dim")
        console.print("\nOptions of one of them: fedfomo methods NAME")
        return
    about = known.get(config.name) or _describe(config.name)
    paper = f" ({about.paper})" if about.paper else ""
    console.print(f"[bold]{config.name}[/bold]{paper}  {about.summary}")
    console.print(f"sends {about.sends}; computes {about.compute}")
    for option in about.options:
        console.print(f"  {option.name}={option.default}", style="cyan")
        console.print(f"      {option.help}")
    options = f" --{label_of(config.name)}.OPTION VALUE" if about.options else ""
    console.print(f"\nfedfomo run --method {config.name}{options}")


def described() -> dict[str, Description]:
    """Return the methods of the library."""
    text = files("fedfomo.cli").joinpath("methods.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Description])


def _describe(name: str) -> Description:
    from fedfomo.algorithms import describe

    return describe(name)
