"""The command for a site that took no part in a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fedfomo.cli.site_files import FileFlags
from fedfomo.cli.terminal import console, parse, require_file
from fedfomo.errors import InputError, require
from fedfomo.io import make_folder, write_atomically

if TYPE_CHECKING:
    from fedfomo.core.model import Model


@dataclass(frozen=True)
class ServeConfig:
    """Mix the models of a finished run for a site that took no part in it.

    Every model is evaluated once on the site's validation data, and weighted as FedFomo weights models (Eq. 3). The
    reference is the mean of all models.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run or of a comparison."""
    site: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the new site: train and target, or train, validation and test. Each is an .npz, .safetensors, .csv
    or .parquet file, or a folder with a folder of images for each class."""
    files: Annotated[FileFlags, tyro.conf.arg(name="")] = field(default_factory=FileFlags)
    model: Path | None = None
    """Python file with make_model, and loss if it is not cross-entropy; only for runs of federate."""
    out: Path | None = None
    """File to write the mixture to, as a state_dict in safetensors."""
    method: str | None = None
    """For a comparison: the method; by default fedfomo, and in a folder of `federate` the first that it was given."""
    seed: int | None = None
    """For a comparison: the seed; by default the first."""


def serve(arguments: list[str]) -> None:
    """Serve a new site."""
    config = parse("serve", ServeConfig, arguments)
    require_file(config.out)
    require(config.site.is_dir(), f"there is no folder {config.site}")
    from safetensors.torch import save

    from fedfomo.report.select_run import choice_in_words, find_run
    from fedfomo.runs.federated_statistics import read_scaling
    from fedfomo.sites.argument_names import as_flags
    from fedfomo.sites.load_sites import load_site
    from fedfomo.sites.serve import models_of, serve_site

    folder = find_run(config.run, config.method, config.seed)
    if folder != config.run:
        console.print(choice_in_words(folder), soft_wrap=True)
    require((folder / "result.json").exists(), f"{folder} is not finished")
    model, names = _model_of(folder, config.model)
    with as_flags():
        site: Any = load_site(config.site, **vars(config.files))
    served = serve_site(model, models_of(folder, model, names), site, read_scaling(folder))
    console.print(str(served), markup=False, soft_wrap=True)
    if config.out is not None:
        make_folder(config.out.parent)
        tensors = {name: tensor.contiguous().clone() for name, tensor in served.model.state_dict().items()}
        write_atomically(config.out, save(tensors))
        console.print(f"the mixture is in {config.out}", soft_wrap=True)


def _model_of(folder: Path, file: Path | None) -> tuple[Model, list[str]]:
    """Return the model of a run's clients, and their names."""
    from fedfomo.deployment.user_model import load_model
    from fedfomo.report.from_run import prepare_run
    from fedfomo.runs.description import describe_run
    from fedfomo.runs.own_sites import is_of_sites

    asked = describe_run(folder)
    if is_of_sites(folder):
        if file is None:
            raise InputError(f"{folder} is of federate: give the file with make_model, --model my_problem.py")
        model = load_model(file, asked.seed).model
    else:
        require(file is None, "the run knows its model: leave out --model")
        problem = prepare_run(folder)
        if isinstance(problem, InputError):
            raise problem
        model = problem.model
    algorithm = asked.make_algorithm()
    return (model.rebuilt(algorithm.network) if algorithm.wraps_network else model), asked.names
