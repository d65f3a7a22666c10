"""The command that hands a model over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fedfomo.cli.terminal import console, parse, require_file
from fedfomo.errors import reading, require, unknown
from fedfomo.io import make_folder, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

SNIPPET = """
from safetensors.torch import load_file
{imports}
model = {build}
model.load_state_dict(load_file("{file}"))
model.eval()
"""


@dataclass(frozen=True)
class ExportConfig:
    """Write one client's final model as a state_dict in safetensors, and show how to load it."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run or of a comparison, or one that `federate` saved."""
    site: Annotated[str, tyro.conf.arg(metavar="SITE")]
    """Name of the site; for a run on a named data set, the client's number."""
    out: Path | None = None
    """The file to write; by default named after the site, in the current folder."""
    method: str | None = None
    """For a comparison: the method; by default fedfomo, and in a folder of `federate` the first that it was given."""
    seed: int | None = None
    """For a comparison: the seed; by default the first."""


def export(arguments: list[str]) -> None:
    """Write one client's model."""
    config = parse("export", ExportConfig, arguments)
    from safetensors.torch import save

    require(config.run.is_dir(), f"there is no folder {config.run}")
    is_saved = (config.run / "summary.json").exists()
    name, tensors, imports, build = _saved(config) if is_saved else _of_run(config)
    out = config.out or Path(f"{name}.safetensors")
    require_file(out)
    make_folder(out.parent)
    write_atomically(out, save(tensors))
    numbers = sum(tensor.numel() for tensor in tensors.values())
    console.print(f"{len(tensors)} tensors with {numbers:,} numbers are in {out}; they load with", soft_wrap=True)
    console.print(SNIPPET.format(imports=imports, build=build, file=out), markup=False, soft_wrap=True)


def _saved(config: ExportConfig) -> tuple[str, dict[str, Tensor], str, str]:
    from fedfomo.core.archives import read_tensors

    summary = config.run / "summary.json"
    with reading(summary, "save the federation's result again"):
        content: dict[str, Any] = json.loads(summary.read_text())
        sites = dict[str, Any](content["sites"])
        imports, build = _built_by(content["method"], content["options"], "make_model()")
    if config.site not in sites:
        raise unknown("site", config.site, sites)
    tensors = read_tensors(config.run / f"{config.site}.safetensors")
    return config.site, tensors, imports, f"{build}  # make_model: your own"


def _of_run(config: ExportConfig) -> tuple[str, dict[str, Tensor], str, str]:
    from fedfomo.report.select_run import choice_in_words, find_run
    from fedfomo.runs.config import RunConfig
    from fedfomo.runs.description import describe_run
    from fedfomo.runs.final_models import read_model
    from fedfomo.runs.own_sites import way_to_resume
    from fedfomo.runs.provenance import read_environment

    folder = find_run(config.run, config.method, config.seed)
    if folder != config.run:
        console.print(choice_in_words(folder), soft_wrap=True)
    require((folder / "result.json").exists(), f"{folder} is not finished: {way_to_resume(config.run)} goes on")
    asked, environment = describe_run(folder), read_environment(folder)
    setting = asked.config.setting if isinstance(asked.config, RunConfig) else None
    is_named = setting is not None and not setting.is_own
    known = list(map(str, range(len(asked.names)))) if is_named else asked.names
    site = config.site.removeprefix("client ").removeprefix("client-") if is_named else config.site
    if site not in known:
        raise unknown("client" if is_named else "site", config.site, known)
    client = known.index(site)
    name, tensors = f"client-{client:05d}", read_model(folder, client)
    if not is_named:
        source = f"of {setting.dataset}" if setting else "your own"
        imports, build = _built_by(asked.method, asked.options, "make_model()")
        return name, tensors, imports, f"{build}  # make_model: {source}"
    network, scale = environment["network"], environment.get("scale")
    plain = f'NETWORKS["{network["name"]}"]({tuple(network["shape"])}, {network["classes"]})'
    imports, build = _built_by(asked.method, asked.options, plain)
    scaling = f"  # inputs: (pixels − {scale['mean']}) / {scale['deviation']}, by channel" if scale else ""
    return name, tensors, f"{imports}from fedfomo.core.networks import NETWORKS\n", build + scaling


def _built_by(method: str, options: Mapping[str, Any], network: str) -> tuple[str, str]:
    """Spell out what a method's clients predict with: the network, or one that the method builds around it."""
    from fedfomo.algorithms import make_algorithm

    if not make_algorithm(method, options).wraps_network:
        return "", network
    return (
        "from fedfomo.algorithms import make_algorithm\n",
        f"make_algorithm({method!r}, {dict(options)!r}).network({network})",
    )
