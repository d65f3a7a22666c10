"""What all commands share: reading arguments, and the terminal."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import tyro
from rich.console import Console
from rich.markup import escape

from fedfomo.cli.missing import what_is_missing
from fedfomo.errors import InputError, nearest, require, unknown
from fedfomo.io import make_folder
from fedfomo.runs.config import CompareConfig, RunConfig, label_of
from fedfomo.runs.config_io import RENAMED, build, load_toml, take_inline_options

C = TypeVar("C")
console = Console(highlight=False)


def parse(command: str, kind: type[C], arguments: Sequence[str], default: C | None = None) -> C:
    """Read the flags of a command."""
    words = io.StringIO()
    given: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with redirect_stderr(words):
            return tyro.cli(kind, args=arguments, prog=f"fedfomo {command}", **given)
    except SystemExit as ended:
        if ended.code != 2:
            raise
        raise _in_one_line(words.getvalue(), f"fedfomo {command} --help") from None


def parse_run(arguments: list[str]) -> RunConfig:
    """Read the flags of `fedfomo run` over the values of a TOML file over the defaults for the data set."""
    arguments, inline = _without_inline_options("--method", arguments)
    start = _read_start(RunConfig, arguments, {"method": 1})
    start = dataclasses.replace(start, options={**start.options, **inline.get(label_of(start.method), {})})
    label = label_of(start.method)
    config, options = parse_with_options("run", RunConfig, arguments, {start.method: start.options}, start)
    return dataclasses.replace(config, options=options[label])


def parse_comparison(arguments: list[str]) -> CompareConfig:
    """Read the flags of `fedfomo compare` over the values of a TOML file over the defaults for the data set."""
    arguments, inline = _without_inline_options("--methods", arguments)
    start = _read_start(CompareConfig, arguments, {"methods": None})
    merged = {label: {**start.options.get(label, {}), **options} for label, options in inline.items()}
    start = dataclasses.replace(start, options={**start.options, **merged})
    methods = {method: start.options.get(label_of(method), {}) for method in ("local", *start.methods)}
    config, options = parse_with_options("compare", CompareConfig, arguments, methods, start)
    options = {label: of_method for label, of_method in {**start.options, **options}.items() if of_method}
    return dataclasses.replace(config, options=options)


def _without_inline_options(flag: str, arguments: list[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Take options out of methods that are written with them; return the words without, and the options by name."""
    words = values_of(flag, arguments)
    plain, options = take_inline_options(words)
    renamed = {word: method for word, method in zip(words, plain, strict=True) if word != method}
    renamed |= {f"{flag}={word}": f"{flag}={method}" for word, method in renamed.items()}
    return [renamed.get(word, word) for word in arguments], options


def parse_with_options(
    command: str,
    kind: type[C],
    arguments: Sequence[str],
    methods: Mapping[str, Mapping[str, Any]],
    default: C | None = None,
) -> tuple[C, dict[str, Mapping[str, Any]]]:
    """Read flags among which are those of methods, `--fedprox.mu`; methods come with the options they have so far.

    Methods are loaded, and PyTorch with them, only where a flag or the help is about their options.
    """
    found = {label_of(method): options for method, options in methods.items()}
    flags = {word.partition(".")[0].removeprefix("--") for word in arguments if word.startswith("--") and "." in word}
    is_asked = {"-h", "--help"} & {*arguments} and (
        values_of("--method", arguments) or values_of("--methods", arguments)
    )
    if "all" in found and flags - {"privacy"}:
        from fedfomo.algorithms import ALGORITHMS

        methods = {**{method: {} for method in ALGORITHMS}, **methods}
    wanted = [method for method in methods if method != "all" and (is_asked or label_of(method) in flags)]
    if not wanted:
        return parse(command, kind, arguments, default), found
    from fedfomo.algorithms import make_algorithm

    start: dict[str, Any] = {method: _with_flags(make_algorithm(method, methods[method])) for method in wanted}
    groups = [
        (
            f"method_{n}",
            Annotated[type(flags), tyro.conf.arg(name=label_of(method))],
            dataclasses.field(default=flags),
        )
        for n, (method, flags) in enumerate(start.items())
        if dataclasses.fields(flags)
    ]
    config: Any = ("config", Annotated[kind, tyro.conf.arg(name="")])
    if default is not None:
        config = (*config, dataclasses.field(default=default))
    whole: Any = dataclasses.make_dataclass("Arguments", [config, *groups])
    whole.__doc__ = kind.__doc__
    parsed = parse(command, whole, arguments)
    for n, (method, _) in enumerate(start.items()):
        algorithm = getattr(parsed, f"method_{n}", None)
        if algorithm is not None:
            usual = vars(make_algorithm(method))
            chosen = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
            unlike = {name: value for name, value in chosen.items() if value != usual.get(name)}
            found[label_of(method)] = _of_former_method(method, methods[method], chosen) | unlike
    return parsed.config, found


def _with_flags(algorithm: Any) -> Any:
    """Return the method, of a class whose flags are as users write its options: `lambda`, which is taken in Python."""
    from fedfomo.core.options import option_types, written

    cls, types = type(algorithm), option_types(type(algorithm))
    named = {field: Annotated[kind, tyro.conf.arg(name=written(field))] for field, kind in types.items()}
    named = {field: kind for field, kind in named.items() if written(field) != field}
    if not named:
        return algorithm
    content = {"__annotations__": named, "name": cls.name, "__doc__": cls.__doc__}
    values = vars(algorithm)
    content |= {field: values[field] for field in named}
    return dataclasses.dataclass(frozen=True)(type(cls.__name__, (cls,), content))(**values)


def _of_former_method(method: str, options: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by which an old file means another method than its name says now, and that are no flags."""
    from fedfomo.algorithms.former_names import MOVED_OPTIONS

    is_former = method == "fedfomo"
    return {name: value for name, value in options.items() if is_former and name in MOVED_OPTIONS.keys() - fields}


def values_of(flag: str, arguments: Sequence[str]) -> list[str]:
    """Return what follows a flag, the last time that it is given."""
    values: list[str] = []
    for number, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == flag and equals:
            values = [value]
        elif name == flag:
            following = list(arguments[number + 1 :])
            values = following[: next((n for n, word in enumerate(following) if word.startswith("--")), None)]
    return values


def _read_start(kind: type[C], arguments: list[str], chosen: Mapping[str, int | None]) -> C:
    """Read the TOML file that may come first, and what else decides which flags there are, and with which defaults."""
    table: dict[str, Any] = {}
    path = Path("flags")
    if arguments and not arguments[0].startswith("-"):
        path = Path(arguments.pop(0))
        table = {"dataset": str(path)} if path.suffix == ".py" else load_toml(path)
    for name, number in {"dataset": 1, **chosen}.items():
        values = values_of(f"--{name}", arguments)[:number]
        if values:
            table[name] = values if number is None else values[0]
    return build(kind, table, path)


def _in_one_line(box: str, explained_by: str) -> InputError:
    """Turn the box in which tyro says what is wrong with a flag into one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [line.strip("│ ") for line in plain.splitlines() if not line.startswith(("╭", "╰"))]
    rules = [n for n, row in enumerate(rows) if re.fullmatch("[─-]{8,}", row)]
    if "╭" not in plain:  # without box characters, the title is a row like the others
        rows, rules = rows[rules[0] + 1 :], [rule - rules[0] - 1 for rule in rules[1:]]
    end = rules[0] if rules else len(rows)
    words = " ".join(rows[:end])
    missing = what_is_missing(words)
    if missing is not None:
        return InputError(missing)
    wrong = re.match(r"Unrecognized options: (.*)", words)
    if wrong:
        return _unknown_flag(wrong[1].split(", ")[0], rows[end:], explained_by)
    wrong = re.match(r"Error parsing (\S+): (.*?)(?:: (.*))?$", words)
    if wrong:
        kinds = {
            "invalid literal for int() with base 10": "a whole number",
            "could not convert string to float": "a number",
        }
        expected = kinds.get(wrong[2])
        return InputError(f"{wrong[1]} must be {expected}, not {wrong[3]}" if expected else words)
    wrong = re.match(r"invalid choice (.*) for argument '(.*)'. Expected one of \((.*)\)", words)
    if wrong:
        choices = " or ".join(choice.strip(" '") for choice in wrong[3].split(",") if choice.strip())
        return InputError(f"{wrong[2]} must be {choices}, not {wrong[1]}")
    return InputError(f"{words or box.strip()} (all flags: {explained_by})")


def _unknown_flag(flag: str, rows: Sequence[str], explained_by: str) -> InputError:
    name = flag.partition("=")[0]
    if not flag.startswith("-"):
        return InputError(f"'{flag}' belongs to no flag: {explained_by} lists the flags")
    old = name.removeprefix("--").removeprefix("no-").replace("-", "_")
    if old in RENAMED:
        return InputError(f"unknown flag '{name}': it is now --{RENAMED[old].replace('_', '-')}")
    if old == "options":
        return InputError(
            "options of a method are flags of their own, such as --fedprox.mu 0.01, not --options mu=0.01"
        )
    method, dot, option = name.removeprefix("--").rpartition(".")
    known = [word.removeprefix(f"--{method}{dot}") for row in rows for word in re.findall(r"--[\w.-]+", row)]
    near = nearest(option, known)
    if method == "fedfomo":
        from fedfomo.algorithms.former_names import MOVED_OPTIONS

        has_it = MOVED_OPTIONS.get(option.replace("-", "_"))
        if has_it is not None:
            return InputError(f"unknown flag '{name}': it is --{has_it}.{option}, with --method {has_it}")
    if dot and near is None:
        return InputError(
            f"unknown flag '{name}': {method} has no option {option}, or is not among the methods that run;"
            f" {explained_by} lists the flags"
        )
    hint = f"did you mean --{method}{dot}{near}?" if near else f"{explained_by} lists the flags"
    return InputError(f"unknown flag '{name}': {hint}")


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


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: the process ends as after Ctrl-C, but for its exit code."""


def stop_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a process that a signal ended."""
    return 143 if isinstance(stop, Terminated) else 130


def require_file(path: Path | None) -> None:
    """Refuse, before hours of work and not after, a place where no file can be written."""
    if path is not None:
        require(not path.is_dir(), f"{path} is a folder: give a file")
        require(path.parent.is_dir() or not path.parent.exists(), f"{path.parent} is a file: give a folder's file")
        is_there = path.exists() or not path.is_symlink()
        require(is_there, f"{path} is a link to what does not exist: give another file")


def warn(message: str) -> None:
    """Tell what is odd but stops nothing."""
    console.print(f"[yellow]note:[/yellow] {escape(message)}", soft_wrap=True)


def warn_of(notes: Sequence[str], most: int, rest: str = "") -> None:
    """Tell the first of many notes of one kind, and how many more there are, and where."""
    for note in notes[:most]:
        warn(note)
    if len(notes) > most:
        warn(f"and {len(notes) - most:,} more notes of this kind{rest}")


def write_json(path: Path | None, value: Any) -> None:
    """Write plain values to a file that was asked for."""
    if path is not None:
        make_folder(path.parent)
        path.write_text(json.dumps(value, indent=1) + "\n")
        console.print(f"written to {path}", soft_wrap=True)


def fail(message: str, code: int) -> NoReturn:
    """End with one line, whatever the names are that it quotes: on Linux, they need not be text."""
    printable = message.encode(errors="backslashreplace").decode()
    Console(stderr=True, highlight=False).print(f"fedfomo: {printable}", soft_wrap=True, markup=False)
    sys.exit(code)
