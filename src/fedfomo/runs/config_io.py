"""Configurations as TOML files and as flags, with one flat set of names for both.

In a file, what is set about privacy and the options of each method are tables: `[privacy]`, `[fedprox]`; everything
else is a flat list of keys. As flags these are `--privacy.noise` and `--fedprox.mu`.
"""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from fedfomo.core.method_names import split_options
from fedfomo.core.options import field_of, written
from fedfomo.errors import InputError, require, unknown
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config import DATASET_DEFAULTS, ExperimentConfig, label_of

C = TypeVar("C")

FORMAT = 2
"""The version of configuration files; version 1 had `options = ["name=value"]` and the keys that are renamed below."""
RENAMED = {
    "dropout": "client_dropout",
    "lateness": "late_fraction",
    "stack": "vectorise",
    "minimum": "min_clients",
    "capacity": "max_sites",
    "patience": "startup_timeout",  # of federations
}

# Parts that are tables of their own in a file; all others share one flat set of names.
TABLES = {Privacy}


def read_toml(path: Path, kind: type[C]) -> C:
    """Read a configuration of this version or of an older one."""
    return build(kind, load_toml(path), path)


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


def build(kind: type[C], table: Mapping[str, Any], path: Path = Path("flags")) -> C:
    """Build a configuration from a table; what is left open takes the default, for the data set if there is one."""
    known = _keys(kind)
    table = {RENAMED.get(key, key): value for key, value in table.items()}
    version = table.pop("format", FORMAT)
    is_known = type(version) is int and 1 <= version <= FORMAT
    require(is_known, f"{path} has format = {version!r}; this version of fedfomo reads formats 1 to {FORMAT}")
    if "options" in known:
        table["options"] = _take_options(table, known, path, getattr(kind, "method", ""))
    _refuse_unknown(table, known, f"in {path}")
    suited = DATASET_DEFAULTS.get(str(table.get("dataset", ExperimentConfig.dataset)), {}) if "dataset" in known else {}
    return _from_table(kind, {**suited, **table}, path)


def write_toml(config: Any) -> str:
    """Write a configuration out, defaults and all, so that it means the same in years to come."""
    flat, tables = _to_tables(config)
    version = {"format": FORMAT} if hasattr(config, "options") else {}
    for value in flat.values():
        is_text = not isinstance(value, str) or not any("\ud800" <= letter <= "\udfff" for letter in value)
        require(is_text, f"{value!a} holds bytes that are no text: choose a name in UTF-8")
    return tomli_w.dumps({**version, **flat, **tables})


def to_cli(config: Any, always: tuple[str, ...] = ()) -> list[str]:
    """Return a configuration as flags: what differs from the defaults for its data set, and what is always named."""
    table = named(config)
    usual = named(build(type(config), {"dataset": table["dataset"]} if "dataset" in table else {}))
    flags: list[str] = []
    for name, value in table.items():
        if name in usual and value == usual[name] and name not in always:
            continue
        part, dot, last = name.replace("_", "-").rpartition(".")
        if isinstance(value, bool):
            flags.append(f"--{part}{dot}{'' if value else 'no-'}{last}")
        elif value is not None and value != ():
            items = cast(tuple[Any, ...], value) if isinstance(value, tuple) else (value,)
            flags.append(" ".join([f"--{part}{dot}{last}", *(shlex.quote(str(item)) for item in items)]))
    return flags


def named(config: Any) -> dict[str, Any]:
    """Return every value of a configuration by the name of its flag."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            prefix = f"{field.name}." if type(value) in TABLES else ""
            values |= {prefix + key: item for key, item in named(value).items()}
        elif field.name == "options":
            tables = _options_by_label(config).items()
            values |= {f"{label}.{written(name)}": item for label, options in tables for name, item in options.items()}
        else:
            values[field.name] = value
    return values


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Read options as name=value; files of format 1 have them so."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        require(bool(equals and name and value), f"option '{pair}' is not of the form name=value")
        name = name.replace("-", "_")
        require(name not in options, f"option '{name}' is given twice")
        options[name] = _literal(value)
    return options


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _keys(kind: type) -> set[str]:
    """Return the keys of a file, tables included."""
    hints = _hints(kind)
    flat = [hint for hint in hints.values() if dataclasses.is_dataclass(hint) and hint not in TABLES]
    own = {name for name, hint in hints.items() if hint not in flat}
    return own.union(*(_keys(cast(type, hint)) for hint in flat))


def _refuse_unknown(table: Mapping[str, Any], keys: set[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise unknown("key", key, keys, where)


def _from_table(kind: type[C], table: Mapping[str, Any], path: Path) -> C:
    """Build a configuration from a flat table: nested parts read the same table, as they share one set of flags."""
    values: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        if hint in TABLES:
            part = table.get(name, {})
            require(isinstance(part, dict), f"'{name}' in {path} must be a table: [{name}]")
            _refuse_unknown(part, _keys(hint), f"in [{name}] of {path}")
            values[name] = _from_table(hint, part, path)
        elif dataclasses.is_dataclass(hint):
            values[name] = _from_table(cast(type, hint), table, path)
        elif name == "options":
            values[name] = table.get(name, {})
        elif name in table:
            values[name] = convert(hint, table[name], f"'{name}' in {path}")
    return kind(**values)


def convert(hint: Any, value: Any, what: str) -> Any:
    """Turn a TOML value into one of a type, or say in words what is expected."""
    try:
        return msgspec.convert(value, hint, dec_hook=_path)
    except msgspec.ValidationError:
        is_zero = isinstance(value, str) and "\0" in value
        wrong = "holds a zero byte, which no path can" if is_zero else f"must be {_expected(hint)}, not {value!r}"
        raise InputError(f"{what} {wrong}") from None


def _path(kind: type, value: Any) -> Path:
    if kind is not Path or not isinstance(value, str) or "\0" in value:
        raise ValueError
    return Path(value)


def _expected(hint: Any) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number"}
    of = [kind for kind in get_args(hint) if kind not in (type(None), ...)]
    if get_origin(hint) is Literal:
        return " or ".join(of)
    if get_origin(hint) is tuple:
        return f"a list of which each is {_expected(of[0])}"
    return _expected(of[0]) if of else words.get(hint, "a text in quotes")


def _take_options(table: dict[str, Any], known: set[str], path: Path, usual: str) -> Any:
    """Take the options of methods out of a table: by method in a comparison, of the one method in a run."""
    old = table.pop("options", [])
    tables = {key: table.pop(key) for key in [*table] if key not in known and isinstance(table[key], dict)}
    is_single = "method" in known
    if isinstance(old, dict) and is_single:
        of_run = {field_of(str(name)): value for name, value in cast(dict[str, Any], old).items()}
    else:
        pairs: tuple[str, ...] = convert(tuple[str, ...], old, f"'options' in {path}")
        of_run = parse_options(pairs) if is_single else _add_dotted(tables, pairs)
    if not is_single and isinstance(table.get("methods"), list | tuple):
        methods = convert(tuple[str, ...], table["methods"], f"'methods' in {path}")
        table["methods"], inline = take_inline_options(methods)
        tables = {**tables, **{label: {**tables.get(label, {}), **of_method} for label, of_method in inline.items()}}
    by_label = {label: {field_of(n): v for n, v in options.items()} for label, options in tables.items()}
    if not is_single:
        return by_label
    label = label_of(str(table.get("method", usual)))
    for other in by_label:
        require(other == label, f"[{other}] in {path} is no table of settings, nor of the method {label}, which runs")
    return {**of_run, **by_label.get(label, {})}


def take_inline_options(methods: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Take options out of methods that are written with them, `fomo5=fedfomo:num_downloads=5`; return them by name."""
    plain: list[str] = []
    options: dict[str, dict[str, Any]] = {}
    for written_so in methods:
        method, pairs = split_options(written_so)
        plain.append(method)
        if pairs:
            options[label_of(method)] = parse_options(pairs)
    return plain, options


def _add_dotted(tables: dict[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    for pair in pairs:
        method, dot, option = pair.partition(".")
        require(bool(dot), f"option '{pair}' is not of the form method.name=value")
        tables[method] = {**tables.get(method, {}), **parse_options([option])}
    return {}


def _options_by_label(config: Any) -> Mapping[str, Mapping[str, Any]]:
    return {label_of(config.method): config.options} if hasattr(config, "method") else config.options


def _to_tables(config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flat keys of a configuration, and its tables, which come last in a file."""
    flat: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            inner, further = _to_tables(value)
            flat, tables = (flat, {**tables, field.name: inner}) if type(value) in TABLES else (flat | inner, tables)
            tables |= further
        elif field.name == "options":
            by_label = _options_by_label(config).items()
            tables |= {label: {written(n): v for n, v in options.items()} for label, options in by_label if options}
        elif value is not None:
            flat[field.name] = str(value) if isinstance(value, Path) else value
    return flat, tables
