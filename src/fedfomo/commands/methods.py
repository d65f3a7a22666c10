"""The command about methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from fedfomo.commands.terminal import console, parse


@dataclass(frozen=True)
class MethodsConfig:
    """List the methods; with a name, the options of that method."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A method."""


def methods(arguments: list[str]) -> None:
    """Describe the methods."""
    config = parse("methods", MethodsConfig, arguments)
    from fedfomo.algorithms import ALGORITHMS, describe

    names = list(ALGORITHMS) if config.name is None else [config.name]
    for name in names:
        description, options = describe(name)
        console.print(f"[bold]{name:<18}[/bold]{description}")
        if config.name is not None:
            for option in options:
                console.print(f"  {option.name}={option.default}", style="cyan")
                console.print(f"      {option.help}")
            example = f"{options[0].name}={options[0].default}" if options else ""
            console.print(f"\nfedfomo run --method {name}" + (f" --options {example}" if example else ""))
