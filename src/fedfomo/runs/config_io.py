"""How configurations are spelt: as TOML files and as flags, with one flat set of names for both."""

from __future__ import annotations

import dataclasses
import json
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from fedfomo.errors import InputError, require, unknown
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config import DATASET_DEFAULTS, ExperimentConfig

C = TypeVar("C")

# Parts that share no flat set of names with the others: "--privacy.noise" on a command line, [privacy] in a file.
TABLES = {Privacy}


def parse_options(pairs: tuple[str, ...]) -> dict[str, str]:
    """Read name=value pairs."""
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        require(bool(equals and name and value), f"option '{pair}' is not of the form name=value")
        name = name.replace("-", "_")
        require(name not in options, f"option '{name}' is given twice")
        options[name] = value
    return options


def read_toml(path: Path, kind: type[C]) -> C:
    """Read a configuration; every unknown key is named, with the nearest that exists."""
    return build(kind, read_table(path, kind), path)


def read_table(path: Path, kind: type) -> dict[str, Any]:
    """Read a configuration file's values as they stand."""
    content = load_toml(path)
    _refuse_unknown(content, _keys(kind), f"in {path}")
    for name, part in _tables(kind).items():
        table = content.get(name, {})
        require(isinstance(table, dict), f"'{name}' in {path} must be a table: [{name}]")
        _refuse_unknown(table, _keys(part), f"in [{name}] of {path}")
    return content


def _refuse_unknown(table: dict[str, Any], keys: set[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise unknown("key", key, keys, where)


def load_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, whatever is in it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no configuration file {path}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a configuration file; runs go on with `fedfomo resume`") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None


def build(kind: type[C], table: dict[str, Any], path: Path = Path("flags")) -> C:
    """Build a configuration from values; what they leave open takes the default, for the data set if there is one."""
    suited = (
        DATASET_DEFAULTS.get(str(table.get("dataset", ExperimentConfig.dataset)), {})
        if "dataset" in _keys(kind)
        else {}
    )
    return _from_table(kind, {**suited, **table}, path)


def write_toml(config: Any) -> str:
    """Spell a configuration out, defaults and all, so that it means the same in years to come."""
    return "\n".join(_to_lines(config)) + "\n"


def to_cli(config: Any, always: tuple[str, ...] = ()) -> list[str]:
    """Spell a configuration as flags: what differs from the defaults for its data set, and what is always named."""
    table = named(config)
    usual = named(build(type(config), {"dataset": table["dataset"]} if "dataset" in table else {}))
    flags: list[str] = []
    for name, value in table.items():
        if value == usual[name] and name not in always:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None and value != ():
            items = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
            flags.append(" ".join([f"--{flag}", *(shlex.quote(str(item)) for item in items)]))
    return flags


def named(config: Any) -> dict[str, Any]:
    """Return every value of a configuration by the name of its flag."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    nested = {name: value for name, value in fields.items() if dataclasses.is_dataclass(value)}
    own = {name: value for name, value in fields.items() if name not in nested}
    for name, value in nested.items():
        prefix = f"{name}." if type(value) in TABLES else ""
        own |= {prefix + key: item for key, item in named(value).items()}
    return own


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _from_table(kind: type[C], table: dict[str, Any], path: Path) -> C:
    """Build a configuration from a flat table: nested parts read the same table, as they share one set of flags."""
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        if hint in TABLES:
            values[name] = _from_table(hint, table.get(name, {}), path)
        elif dataclasses.is_dataclass(hint):
            values[name] = _from_table(hint, table, path)  # type: ignore[arg-type]
        elif name in table:
            value = table[name]
            if name == "options" and isinstance(value, dict):
                value = [f"{option}={given}" for option, given in cast(dict[str, Any], value).items()]
            values[name] = _value(hint, value, f"'{name}' in {path}")
    return kind(**values)


def _keys(kind: type) -> set[str]:
    hints = _hints(kind)
    nested = [hint for hint in hints.values() if dataclasses.is_dataclass(hint) and hint not in TABLES]
    own = {name for name, hint in hints.items() if hint not in nested}
    return own.union(*(_keys(hint) for hint in nested))  # type: ignore[arg-type]


def _tables(kind: type) -> dict[str, type]:
    """Find the parts, however deep, that are tables of their own."""
    found: dict[str, type] = {}
    for name, hint in _hints(kind).items():
        if hint in TABLES:
            found[name] = hint
        elif dataclasses.is_dataclass(hint):
            found |= _tables(cast(type, hint))
    return found


def _value(hint: Any, value: Any, what: str) -> Any:
    """Turn a TOML value into what a field wants; TOML has no paths or tuples."""
    kinds: dict[Any, tuple[tuple[type, ...], str]] = {
        int: ((int,), "a whole number"),
        float: ((int, float), "a number"),
        bool: ((bool,), "true or false"),
        str: ((str,), "a text in quotes"),
    }
    if hint in kinds:
        allowed, words = kinds[hint]
        wrong_bool = isinstance(value, bool) and hint is not bool
        require(isinstance(value, allowed) and not wrong_bool, f"{what} must be {words}, not {value!r}")
        return float(value) if hint is float else value
    if hint == Path | None:
        require("\0" not in _value(str, value, what), f"{what} holds a zero byte, which no path can")
        return Path(value)
    if hint in (int | None, float | None):
        return _value(int if hint == int | None else float, value, what)
    if get_origin(hint) is Literal:
        require(value in get_args(hint), f"{what} must be {' or '.join(get_args(hint))}, not {value!r}")
        return value
    require(isinstance(value, list), f"{what} must be a list, not {value!r}")
    item = int if hint == tuple[int, ...] else str
    return tuple(_value(item, element, what) for element in value)


def _to_lines(config: Any) -> list[str]:
    lines: list[str] = []
    tables: list[str] = []  # a table reaches to the end of a file
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if type(value) in TABLES:
            tables += ["", f"[{f.name}]", *_to_lines(value)]
        elif dataclasses.is_dataclass(value):
            inner = _to_lines(value)
            cut = inner.index("") if "" in inner else len(inner)
            lines, tables = lines + inner[:cut], tables + inner[cut:]
        elif value is not None:
            lines.append(f"{f.name} = {_spell(value)}")
    return lines + tables


def _spell(value: Any) -> str:
    # JSON spells texts, numbers, booleans and lists as TOML does; but TOML knows no halves of a character.
    plain = [*value] if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    text = json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{plain!a} holds bytes that are no text: choose a name in UTF-8") from None
    return text
