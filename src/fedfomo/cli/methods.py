"""The command about methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from fedfomo.cli.terminal import console, parse, warn
from fedfomo.errors import InputError


@dataclass(frozen=True)
class MethodsConfig:
    """List the methods; with a name, the options of that method."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A method of the list, or one of your own: path/to/file.py:Class."""


def methods(arguments: list[str]) -> None:
    """Describe the methods."""
    config = parse("methods", MethodsConfig, arguments)
    from fedfomo.algorithms import ALGORITHMS, describe
    from fedfomo.algorithms.registry import installed_methods
    from fedfomo.runs.config import label_of

    if config.name is None:
        for name in dict.fromkeys((*ALGORITHMS, *installed_methods())):
            try:
                about = describe(name)
            except InputError as error:  # a package whose method cannot be imported hides no others
                warn(str(error))
                continue
            console.print(f"[bold]{name}[/bold]  {about.summary}")
            console.print(f"    sends {about.sends}; computes {about.compute}", style="dim")
        console.print("\nOptions of one of them: fedfomo methods NAME")
        return
    about = describe(config.name)
    paper = f" ({about.paper})" if about.paper else ""
    console.print(f"[bold]{config.name}[/bold]{paper}  {about.summary}")
    console.print(f"sends {about.sends}; computes {about.compute}")
    for option in about.options:
        console.print(f"  {option.name}={option.default}", style="cyan")
        console.print(f"      {option.help}")
    options = f" --{label_of(config.name)}.OPTION VALUE" if about.options else ""
    console.print(f"\nfedfomo run --method {config.name}{options}")
