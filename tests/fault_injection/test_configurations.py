"""Any configuration runs, or is refused within a second by a line that names what is wrong with it."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from configurations import SHORT, Written, as_flags, as_toml, written
from fedfomo.algorithms import make_algorithm
from fedfomo.cli.main import main
from fedfomo.errors import InputError
from fedfomo.runs import config_io
from fedfomo.runs.config import RunConfig
from fedfomo.runs.config_io import named, read_toml
from scorecard import Torture

MOST_SECONDS = 1.0


def _read(path: Path, case: Written) -> str:
    """Read a configuration file as a run does, and say what came of it."""
    path.write_text(as_toml(case.table))
    try:
        found = read_toml(path, RunConfig)
        algorithm = make_algorithm(found.method, found.options)
    except InputError as error:
        return "refused" if _is_named(str(error), case) else f"UNNAMED {error}"
    except Exception as error:  # what this row is about
        return f"STRAY {error!r}"
    return _ignored(found, algorithm, case) or "taken"


def _is_named(line: str, case: Written) -> bool:
    stranger = re.search(
        r"'(.*)' belongs to no flag|unknown flag '(.*?)'", line
    )  # a word that belongs to no flag is named itself
    if stranger and (stranger[1] or stranger[2]) in map(str, as_flags(case.table)):
        return True
    return any(name in line or name.replace("_", "-") in line for name in case.names if name)


def _ignored(read: RunConfig, algorithm: Any, case: Written) -> str | None:
    """Say which key made no difference to what was read."""
    tables = ("privacy", "options", case.table.get("method"))
    given = {key: value for key, value in case.table.items() if key not in tables}
    privacy = case.table.get("privacy")
    given |= {f"privacy.{key}": value for key, value in (privacy or {}).items()} if isinstance(privacy, dict) else {}
    found = named(read)
    for key, value in given.items():
        if not _is_same(found.get(key), value):
            return f"IGNORED {key}: {value!r} became {found.get(key)!r}"
    for key, value in read.options.items():
        if not _is_same(str(getattr(algorithm, key)).lower(), str(value).lower()):
            return f"IGNORED option {key}: {value!r} became {getattr(algorithm, key)!r}"
    return None


def _is_same(found: Any, given: Any) -> bool:
    if isinstance(found, Path):
        return found == Path(given)
    if isinstance(found, tuple):
        return list(found) == given
    try:
        return found == given or math.isclose(float(found), float(given))
    except (TypeError, ValueError):
        return False


def _called(arguments: Sequence[str]) -> tuple[int, str, float]:
    """Call the command line within this process; return its exit code, its last words, and its seconds."""
    words = io.StringIO()
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(words):
        try:
            main(["run", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception as error:  # what this row is about
            return 1, f"STRAY {error!r}", time.process_time() - began
    return code, words.getvalue(), time.process_time() - began


def _verdict(code: int, words: str, seconds: float, case: Written) -> str:
    if words.startswith("STRAY") or "Traceback" in words or code not in (0, 2):
        return f"STRAY exit code {code}: {words[-300:]}"
    if code == 0:
        return "run"
    if seconds > MOST_SECONDS:
        return f"SLOW {seconds:.1f} s: {words}"
    return "refused" if _is_named(words, case) else f"UNNAMED {words}"


def test_a_configuration_runs_or_is_refused_by_name(
    torture: Torture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(16)  # noqa: S311 - the same configurations every time
    outcomes: Counter[str] = Counter()
    bad: list[str] = []
    slowest = 0.0
    called, started, in_shells = (1000, 400, 10) if torture.is_full else (20, 10, 1)
    _called(["--method", "local", "--out", str(tmp_path / "first"), *as_flags({**SHORT, "clients": 2})])  # imports
    for number in range(10_000 if torture.is_full else 300):
        case = written(rng)
        file = tmp_path / "settings.toml"
        began = time.process_time()
        verdict = _read(file, case)
        slowest = max(slowest, time.process_time() - began)
        if verdict == "taken" and started and case.is_short:  # let it run a round
            started -= 1
            flags = as_flags({**SHORT, "out": str(tmp_path / f"run-{number}")})
            verdict = _verdict(*_called([str(file), *flags]), case)
        elif called and verdict == "refused" and case.is_short:  # what a file may not say, flags may not either
            called -= 1
            flags = as_flags({**SHORT, **case.table, "out": str(tmp_path / f"flags-{number}")})
            code, words, seconds = _called(flags)
            verdict = _verdict(code, words, seconds, case)
            slowest = max(slowest, seconds if code else 0.0)
        outcomes[verdict.split()[0]] += 1
        if verdict.split()[0].isupper():
            bad.append(f"{dict(case.table)}: {verdict}")
    shells = [
        _through_a_shell(tmp_path, number, case)
        for number, case in enumerate(itertools.islice(_short_ones(rng), in_shells))
    ]
    bad += [verdict for verdict in shells if verdict.split()[0].isupper()]
    # A reader that takes unknown keys for granted is found out.
    monkeypatch.setattr(config_io, "_refuse_unknown", lambda table, keys, where: None)
    twin = _read(tmp_path / "settings.toml", Written({"epoch": 1}, ("epoch",)))
    torture.record(
        "16",
        "A configuration runs, or is refused at once by a line that names what is wrong",
        f"{sum(outcomes.values()):,} configurations of all methods, as files and as flags: unknown keys, wrong types,"
        f" out of range, not a number, paths that lead elsewhere; {len(shells)} of them through a shell",
        f"{outcomes['refused']:,} refused by name, {outcomes['run']} run a round, {outcomes['taken']:,} read, no key"
        f" ignored; {len(bad)} tracebacks, unnamed or late refusals; slowest refusal {slowest:.2f} s",
        not bad and twin.startswith("IGNORED") and outcomes["run"] > 0 and slowest <= MOST_SECONDS,
        bad=bad[:20],
        outcomes=dict(outcomes),
    )


def _short_ones(rng: random.Random) -> Iterator[Written]:
    while True:
        case = written(rng)
        if case.is_short:
            yield case


def _through_a_shell(folder: Path, number: int, case: Written) -> str:
    flags = as_flags({**SHORT, **case.table, "out": str(folder / f"shell-{number}")})
    command = [sys.executable, "-m", "fedfomo", "run", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "300"})
    return _verdict(ended.returncode, ended.stderr, 0.0, case)
