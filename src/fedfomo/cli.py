"""The command line: parses, calls, prints.

Torch takes seconds to import, so nothing here imports it before a command is known to need it.
"""

from __future__ import annotations

import errno
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import tyro
from rich.console import Console

from fedfomo.config import CompareConfig, RunConfig, Setting, build, options_of, read_table, read_toml, write_toml
from fedfomo.errors import InputError, unknown

if TYPE_CHECKING:
    from fedfomo.experiment import Prepared, RunRecord

C = TypeVar("C")
console = Console(highlight=False)

USAGE = """\
usage: fedfomo COMMAND [--help]

Personalised federated learning: every client federates with the clients that help it.

  demo        local training, FedAvg and FedFomo side by side on handwritten digits, about a minute
  run         run one method and keep everything about it in a folder
  compare     run several methods on the same clients, over several seeds, and show one table
  resume      go on with a run or a comparison that was stopped or killed
  methods     list the methods; with a name, its options
  scenarios   list the ways to spread data over clients; with show, what every client would hold
  data        download a public data set
  latent      build the paper's latent distributions of a data set

Every command explains itself: fedfomo run --help
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command; bad input ends it with one line and exit code 2."""
    try:
        _run_command(list(sys.argv[1:] if arguments is None else arguments))
    except InputError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        _fail(f"cannot write {error.filename}: {error.strerror}", 2)
    sys.exit(0)


def _run_command(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return
    name, *rest = arguments
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    COMMANDS[name](rest)


@dataclass(frozen=True)
class DemoConfig:
    """Show local training, FedAvg and FedFomo side by side: 15 clients, 5 hidden groups of handwritten digits."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of every method for each."""
    out: Path | None = None
    """Folder for the runs; it must not exist yet. By default runs/ and the time."""


def demo(arguments: list[str]) -> None:
    """Compare three methods on the embedded data set and show what FedFomo found out."""
    config = _parse("demo", DemoConfig, arguments)
    records = _compare(CompareConfig(("local", "fedavg", "fedfomo"), (), config.seeds, config.out), "demo")
    from fedfomo.display import affinity_map, recovery_sentence, verdict

    found = [record for record in records if record.method == "fedfomo"]
    assert found[0].affinity is not None  # noqa: S101 - FedFomo always has one
    console.print("\nWho helps whom (FedFomo, first seed; brighter: that giver's models help that receiver more)")
    console.print(affinity_map(found[0].affinity, found[0].groups))
    for record in found:
        console.print(recovery_sentence(record))
    console.print(verdict(records))


def run(arguments: list[str]) -> None:
    """Run one method."""
    config = _parse("run", RunConfig, arguments)
    from fedfomo.algorithms import make_algorithm
    from fedfomo.experiment import new_folder, prepare, start_run

    make_algorithm(config.method, options_of(config.options))  # refuse before anything is written
    prepared = prepare(config.setting, config.seed)
    folder = new_folder(config.out, config.method)
    start_run(config, folder, prepared)
    _finish_run(folder, config, prepared)


def compare(arguments: list[str]) -> None:
    """Run several methods."""
    _compare(_parse("compare", CompareConfig, arguments), "compare")


@dataclass(frozen=True)
class ResumeConfig:
    """Go on with a run or a comparison that was stopped or killed, from its last complete round."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    workers: int | None = None
    """Worker processes; by default one per core, 0 for none. The result does not depend on it."""


def resume(arguments: list[str]) -> None:
    """Go on after an interruption."""
    config = _parse("resume", ResumeConfig, arguments)
    path = config.folder / "config.toml"
    if not path.exists():
        raise InputError(f"{config.folder} is not the folder of a run: it has no config.toml")
    if "methods" in tomllib.loads(path.read_text()):
        comparison = read_toml(path, CompareConfig)
        setting = replace(comparison.setting, workers=config.workers)
        _finish_comparison(config.folder, replace(comparison, setting=setting))
    else:
        from fedfomo.experiment import prepare

        settings = read_toml(path, RunConfig)
        settings = replace(settings, setting=replace(settings.setting, workers=config.workers))
        _finish_run(config.folder, settings, prepare(settings.setting, settings.seed))


@dataclass(frozen=True)
class MethodsConfig:
    """List the methods; with a name, the options of that method."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A method."""


def methods(arguments: list[str]) -> None:
    """Describe the methods."""
    config = _parse("methods", MethodsConfig, arguments)
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


def scenarios(arguments: list[str]) -> None:
    """Describe the scenarios."""
    from fedfomo import commands_data

    commands_data.scenarios(arguments)


def data(arguments: list[str]) -> None:
    """Fetch data sets."""
    from fedfomo import commands_data

    commands_data.data(arguments)


def latent(arguments: list[str]) -> None:
    """Make latent distributions."""
    from fedfomo import commands_data

    commands_data.latent(arguments)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "run": run,
    "compare": compare,
    "resume": resume,
    "methods": methods,
    "scenarios": scenarios,
    "data": data,
    "latent": latent,
}


def _parse(command: str, kind: type[C], arguments: list[str]) -> C:
    """Read flags over the values of a TOML file, if one comes first, over the defaults for the data set."""
    marked: Any = tyro.conf.OmitArgPrefixes[kind]
    if kind not in (RunConfig, CompareConfig):
        return tyro.cli(marked, args=arguments, prog=f"fedfomo {command}")
    table: dict[str, Any] = {}
    path = Path("flags")
    if arguments and not arguments[0].startswith("-"):
        path, arguments = Path(arguments[0]), arguments[1:]
        table = read_table(path, kind)
    for flag, value in pairwise(arguments):
        if flag == "--dataset":
            table["dataset"] = value
    return tyro.cli(marked, args=arguments, prog=f"fedfomo {command}", default=build(kind, table, path))


def _compare(config: CompareConfig, name: str) -> list[RunRecord]:
    from fedfomo.algorithms import make_algorithm
    from fedfomo.experiment import new_folder, runs_of

    for planned in runs_of(config):  # refuse before anything is written
        make_algorithm(planned.method, options_of(planned.options))
    folder = new_folder(config.out, name)
    (folder / "config.toml").write_text(write_toml(config))
    return _finish_comparison(folder, config)


def _finish_comparison(folder: Path, config: CompareConfig) -> list[RunRecord]:
    from fedfomo.experiment import prepare, runs_of, start_run

    records: list[RunRecord] = []
    prepared: dict[int, Prepared] = {}
    for planned in runs_of(config):
        if planned.seed not in prepared:
            prepared = {planned.seed: prepare(config.setting, planned.seed)}
            _introduce(config.setting, prepared[planned.seed], first=planned.seed == config.seeds[0])
        place = folder / f"{planned.method}-seed-{planned.seed}"
        if not (place / "environment.json").exists():
            place.mkdir(exist_ok=True)
            start_run(planned, place, prepared[planned.seed])
        records.append(_play(place, folder, planned, prepared[planned.seed]))
    _show_table(records)
    console.print(f"runs are kept in {folder}", soft_wrap=True)
    return records


def _finish_run(folder: Path, config: RunConfig, prepared: Prepared) -> None:
    _introduce(config.setting, prepared, first=True)
    _show_table([_play(folder, folder, config, prepared)])
    console.print(f"everything about this run is in {folder}", soft_wrap=True)


def _show_table(records: list[RunRecord]) -> None:
    from fedfomo.display import LEGEND, comparison_table

    console.print(comparison_table(records))
    console.print(LEGEND, style="dim")


def _play(folder: Path, to_resume: Path, config: RunConfig, prepared: Prepared) -> RunRecord:
    from fedfomo.display import ProgressBar
    from fedfomo.experiment import go_on
    from fedfomo.federation import cohort_size

    plan, clients = prepared.plan, len(prepared.problem.clients)
    title = f"{config.method}, seed {config.seed}"
    hint = f"go on with `fedfomo resume {to_resume}`"
    try:
        with ProgressBar(console, title, plan.rounds, cohort_size(clients, plan.participation), clients) as bar:
            return go_on(folder, prepared, bar, _warn)
    except KeyboardInterrupt:
        _fail(f"stopped; nothing is lost up to the last complete round: {hint}", 130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _fail(f"cannot write {error.filename}: {error.strerror}; make room, then {hint}", 2)


def _introduce(setting: Setting, prepared: Prepared, first: bool) -> None:
    """Say what is about to run, what is odd about it, and how long it may take."""
    from fedfomo.display import duration
    from fedfomo.forecast import forecast_seconds

    scenario = prepared.scenario
    if first:
        console.print(
            f"{prepared.data.name}, {setting.scenario.scenario}: {len(scenario.clients)} clients,"
            f" {sum(len(c.train) for c in scenario.clients)} training examples,"
            f" label distance (EMD) {scenario.emd_l1:.2f}, as the authors count it {scenario.emd_official:.2f}"
        )
        seconds = forecast_seconds(prepared.problem, prepared.plan)
        if seconds > 10:
            console.print(f"forecast: about {duration(seconds)} a run")
    for warning in scenario.warnings:
        _warn(warning)


def _warn(message: str) -> None:
    console.print(f"[yellow]note:[/yellow] {message}", soft_wrap=True)


def _fail(message: str, code: int) -> NoReturn:
    Console(stderr=True, highlight=False).print(f"fedfomo: {message}", soft_wrap=True, markup=False)
    sys.exit(code)
