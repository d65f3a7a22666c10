"""What a command says if an argument is missing: what it takes, and an example."""

from __future__ import annotations

import re

# What stands behind the words that helps print for arguments, and an example.
KINDS = {
    "RUN": ("the folder of a run", "runs/NAME"),
    "FOLDER|FILE.py|MODULE": ("a folder of sites, a Python file or a module", "FOLDER"),
}
ARGUMENT = re.compile(r"(?:(--[\w.-]+) )?(\S+)(?: (.*))?")


def what_is_missing(words: str) -> str | None:
    """Turn what tyro says of missing arguments into a sentence with an example; None: it speaks of something else."""
    found = re.fullmatch(r"Missing from (.*?): (.*)", words)
    if found is None:
        return None
    command, rest = found.groups()
    taken: list[str] = []
    example: list[str] = []
    for text in filter(None, map(str.strip, rest.split("(required)"))):
        argument = ARGUMENT.fullmatch(text)
        if argument is None:
            return None
        flag, name, meaning = argument.groups()
        told = f"{name} ({meaning.rstrip('. ')})" if meaning else name
        what, instance = KINDS.get(name, (told, name))
        taken.append(f"{flag} {name}" if flag else what)
        example.append(f"{flag} {name}" if flag else instance)
    given = ["…"] if all(part.startswith("--") for part in example) else []
    return f"{command} takes {' and '.join(taken)}: {' '.join([command, *given, *example])}"
