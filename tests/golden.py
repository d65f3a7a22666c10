"""Digests of final models and logs, by which a change of the code can prove that it changed no bit.

`python tests/golden.py` computes every case and compares it with `tests/golden.json`: it names what differs and ends
with 1. `--write` records the digests of this code instead, and `--only TEXT` takes the cases with TEXT in their name.
Digests hold for one kind of processor and one set of libraries, so there is a record for each that was used. Without
one for this machine nothing is compared, and it ends with 2.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import logging
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import astuple, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

# All that is used of the library and of the tests; everything else below goes by what users see.
from fedfomo import Privacy, Sgd, federate
from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.cli.main import main as command_line
from fedfomo.core.determinism import instructions, processor
from in_memory_transport import make_federation, run_federation
from toy_problems import InProcess, fingerprint, perceptron, points_problem, run_rounds, with_batch_norm, with_dropout

RECORDED = Path(__file__).with_name("golden.json")
PROCESSES = 2
LIBRARIES = ("torch", "numpy", "scikit-learn", "opacus")

Digests = dict[str, str]

# --- The cases: from a name to arguments ---

SMALL = (
    *("--clients", "12", "--distributions", "3", "--data-fraction", "0.5", "--batch-size", "10", "--epochs", "2"),
    *("--rounds", "5", "--participation", "0.6", "--workers", "0"),
)
EXACT, STACKED = "--no-vectorise", "--vectorise"
NOISE = ("--privacy.noise", "1.0", "--privacy.validation-noise", "1.0")
EVERYBODY = ("--participation", "1.0")


def flag_of(method: str, option: str) -> tuple[str, ...]:
    """Return the flag for one option, given as name=value."""
    name, _, value = option.partition("=")
    name = name.replace("_", "-")
    switches = {"true": (f"--{method}.{name}",), "false": (f"--{method}.no-{name}",)}
    return switches.get(value, (f"--{method}.{name}", value))


METHODS = {
    f"{method}/{way}": ("--method", method, *flags)
    for method in ALGORITHMS
    for way, flags in {"exact": (EXACT,), "stacked": (STACKED,), "private": (EXACT, *NOISE)}.items()
}

# Few downloads, or what is chosen does not matter; foreign targets and long steps, or every model helps.
CHOOSY = (EXACT, "--scenario", "ood", "--learning-rate", "0.5", "--rounds", "8", "--fedfomo.num-downloads", "2")

FEDFOMO_OPTIONS = {
    f"fedfomo/{option}": (*CHOOSY, *flag_of("fedfomo", option))
    for option in ("epsilon_decay=0.05", "epsilon=1.0")  # the first is the default
}

CODED, ROBUST, KEEPING = "fedfomo-as-coded", "fedfomo-robust", "fedfomo-keep-training"
MOVED_OPTIONS = {
    f"fedfomo/{options[0]}": (
        *(*CHOOSY[:-2], "--method", method, f"--{method}.num-downloads", "2"),
        *(word for option in options for word in flag_of(method, option)),
    )
    for method, *options in (
        (CODED, "norm=l1", "affinity_update=raw", "num_averages=0"),
        (CODED, "affinity_update=normalised", "norm=l2", "num_averages=0"),
        (CODED, "availability=latest", "norm=l2", "affinity_update=raw", "num_averages=0"),
        (CODED, "num_averages=2", "norm=l2", "affinity_update=raw"),
        (ROBUST, "check_mixture=true"),
        (ROBUST, "weight_limit=0.5"),
        (ROBUST, "new_head_epochs=1"),
    )
} | {
    "fedfomo/keep_training=true": (*CHOOSY[:-2], "--method", KEEPING, f"--{KEEPING}.num-downloads", "2"),
    # At this rate, training changes nearly nothing: everybody is a free rider, and all models are copies.
    "fedfomo/flag_free_riders=true": (
        *(EXACT, *EVERYBODY, "--learning-rate", "1e-6"),
        *("--method", ROBUST, f"--{ROBUST}.flag-free-riders"),
    ),
}
"""Options of variants that were options of `fedfomo` when the digests were recorded."""

SPLITS = ("epsilon_1=10.0", "epsilon_2=0.01", "first_split=0.0", "wait=0.0", "separation=0")  # whatever comes

OTHER_OPTIONS = {
    f"{method}/{' '.join(options)}": (
        *("--method", method, EXACT, *EVERYBODY),
        *(word for option in options for word in flag_of(method, option)),
    )
    for method, *options in (
        ("local", "keep_best=true"),
        ("fedavg-finetuned", "gated=false"),
        ("fedavgm", "nesterov=true", "server_rate=0.5"),
        ("fedprox", "stragglers=0.5"),
        ("lg-fedavg", "global_part=upper"),
        ("fedrep", "body_epochs=1", "head_layers=2"),
        ("fedala", "blended_layers=2", "share=0.5"),
        ("cfl", *SPLITS),
        ("cfl", *SPLITS, "linkage=complete"),
        (
            "cfl",
            "epsilon_1=10.0",
            "epsilon_2=0.01",
            "first_split=0.0",
            "wait=0.0",
            "separation=0",
            "select_by_validation=true",
        ),
        ("ifca", "num_clusters=3", "share_body=true"),
        ("ifca", "num_clusters=3", "seeding=random"),
        ("hypcluster", "num_hypotheses=3", "seeding=random"),
        ("mapper", "mix=parameters", "num_shares=3"),
        ("fl-hc", "cut=gap"),
        ("fl-hc", "num_clusters=4", "metric=cosine", "linkage=complete"),
        ("fedamp", "scale=absolute"),
        ("dpfl", "budget=2", "num_candidates=3", "refresh_every=1"),
        ("per-fedavg", "variant=hessian-free"),
        ("apfl", "learns_share=false"),
        ("mocha", "relate_every=1"),
        ("mocha-linear", "relate_every=1", "side=4"),
        ("private-mixture", "blends=outputs", "shared_learns_from=itself", "gate_waits=1"),
        ("apple", "full_steps=false"),
    )
}

SETTINGS = {
    f"setting/{name}": (EXACT, *flags)
    for name, flags in {
        "everybody": EVERYBODY,
        "dropout and lateness": (*EVERYBODY, "--client-dropout", "0.3", "--late-fraction", "0.3"),
        "dropout and lateness of fedavg": (
            *EVERYBODY,
            "--client-dropout",
            "0.3",
            "--late-fraction",
            "0.3",
            "--method",
            "fedavg",
        ),
        "dropout and lateness stacked": (STACKED, *EVERYBODY, "--client-dropout", "0.3", "--late-fraction", "0.3"),
        "ood": ("--scenario", "ood"),
        "ood stacked": (STACKED, "--scenario", "ood"),
        "pathological": ("--scenario", "pathological", "--classes-per-client", "2"),
        "dirichlet": ("--scenario", "dirichlet", "--alpha", "0.3"),
        "iid": ("--scenario", "iid"),
        "classes as groups": ("--representation", "classes", "--distributions", "10", "--clients", "10"),
        "shuffled targets": ("--scenario", "pathological", "--shuffle-targets"),
        "shared pool": ("--share-fraction", "0.1"),
        "few evaluations": ("--evaluate-every", "2"),
        "momentum": ("--momentum", "0.9", "--epochs", "2"),
        "momentum stacked": (STACKED, "--momentum", "0.9", "--epochs", "2"),
        "augmented": ("--augment",),
        "standardised": ("--standardise",),
        "convolutions": ("--network", "mcmahan_cnn", "--rounds", "2", "--data-fraction", "0.1"),
        "another seed": ("--seed", "7"),
        "noise on training only": ("--privacy.noise", "1.0"),
        "noise solved for epsilon": ("--privacy.epsilon", "8.0"),
        "privacy budget": ("--privacy.noise", "1.0", "--privacy.budget", "2.0", *EVERYBODY),
        "prv accountant": ("--privacy.noise", "1.0", "--privacy.accountant", "prv", "--clients", "3"),
    }.items()
}


def told_before(name: str) -> dict[str, Any]:
    """Return the names of method and options in a result when the digests were recorded, where they have changed."""
    method, _, option = name.partition("/")
    if name not in MOVED_OPTIONS:
        return {}
    options = {} if option.startswith("flag") else {"num_downloads": "2"}
    return {"method": method, "options": options | dict([option.split("=")])}


RUNS = METHODS | FEDFOMO_OPTIONS | MOVED_OPTIONS | OTHER_OPTIONS | SETTINGS
"""Arguments of `fedfomo run`; later flags win over those in SMALL."""

AS_PAPER = {"norm": "l2", "affinity_update": "raw", "num_averages": 0}

SITES: dict[str, dict[str, Any]] = {
    "federate/fedfomo": {"method": "fedfomo"},
    "federate/fedfomo latest": {
        "method": "fedfomo-as-coded",
        "options": AS_PAPER | {"availability": "latest"},
        "participation": 0.6,
    },
    "federate/fedavg": {"method": "fedavg"},
    "federate/apfl-logits": {"method": "apfl-logits"},
    "federate/regression": {"method": "fedfomo", "loss": "regression"},
    "federate/private": {
        "method": "fedfomo",
        "privacy": Privacy(noise=1.0, validation_noise=1.0, delta=1e-3),
        "layers": "plain",
    },
    "federate/three parts": {"method": "fedfomo", "parts": 3, "seed": 5},
}
"""Arguments of `federate`, and two of the sites themselves: the number of `parts`, and the model's `layers`."""

IN_MEMORY: dict[str, dict[str, Any]] = {
    "memory/fedfomo": {},
    "memory/fedfomo batch norm": {"build": with_batch_norm},
    "memory/fedfomo dropout layers": {"build": with_dropout},
    "memory/fedfomo lost and broken": {"unheard": (1,), "broken": (4,)},
    "memory/fedfomo copies": {"copies": True},
    "memory/fedfomo copies share a slot": {
        "copies": True,
        "method": "fedfomo-robust",
        "options": {"one_slot_for_copies": True},
    },
    "memory/fedfomo-averages": {"method": "fedfomo-averages"},
}

LOOPBACK: dict[str, dict[str, Any]] = {
    "loopback/fedfomo": {},
    "loopback/fedfomo partial": {"participation": 0.67, "rounds": 3},
    "loopback/fedfomo 8 bits": {"bits": 8},
    "loopback/apfl-logits": {"method": "apfl-logits"},
    "loopback/fedfomo-plus": {"method": "fedfomo-plus", "rounds": 3},
}

# --- How a case is computed ---


def of_run(arguments: Sequence[str], may_be_refused: bool, former: Mapping[str, Any]) -> Digests:
    """Compute a run by the command line and hash what lies in its folder; `former` are names that a result had."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        told = io.StringIO()
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(told):
                command_line(["run", *SMALL, *arguments, "--out", str(folder)])
        except SystemExit as ended:
            if ended.code == 2 and may_be_refused:
                return {"refused": "refused"}
            if ended.code not in (0, None):
                raise RuntimeError(f"exit code {ended.code}: {told.getvalue().strip()}") from None
        models = {path.stem: load_file(path) for path in sorted((folder / "models").iterdir())}
        result = json.loads((folder / "result.json").read_bytes())
        del result["seconds"]
        if result["best_round"] is None:  # a field that records of earlier versions do not have
            del result["best_round"]
        result["options"] = as_recorded(result["options"], arguments)
        result |= former
        log = (folder / "rounds.jsonl").read_text().splitlines()
        return {"models": of_models(models), "log": of_lines(map(json.loads, log)), "result": of_lines([result])}


def as_recorded(options: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, str]:
    """Return the options of a result as they were when the digests were recorded: as they were typed."""
    typed: dict[str, str] = {}
    for number, word in enumerate(arguments):
        _, dot, name = word.partition(".")
        if not word.startswith("--") or not dot or word.startswith("--privacy."):
            continue
        negated = name.removeprefix("no-") if name.startswith("no-") else None
        following = arguments[number + 1] if number + 1 < len(arguments) else "--"
        value = "false" if negated else "true" if following.startswith("--") else following
        typed[(negated or name).replace("-", "_")] = value
    for name, value in options.items():
        if str(value).lower() != typed[name] and float(value) != float(typed[name]):
            raise ValueError(f"{name} was given as {typed[name]} and is kept as {value!r}")
    return typed


class Residual(nn.Module):
    """Convolutions with batch norm around a shortcut."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, outputs)

    def forward(self, images: Tensor) -> Tensor:
        features = self.first(images)
        return self.head(torch.relu(features + self.block(features)).mean(dim=(2, 3)))


def plain(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, outputs))


def images(bright_label: int, count: int, seed: int, is_regression: bool) -> tuple[Tensor, Tensor]:
    """Dark and bright images; sites disagree about which of them is which."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    level = 2.0 * (labels == bright_label).float() - 1
    inputs = level.view(-1, 1, 1, 1) + torch.randn(count, 1, 6, 6, generator=rng)
    return inputs, labels.float()[:, None] if is_regression else labels


def of_sites(parts: int = 2, layers: str = "residual", **arguments: Any) -> Digests:
    """Federate four sites and hash all figures that come back."""
    is_regression = arguments.get("loss") == "regression"
    outputs = 1 if is_regression else 2
    sizes = (21, 40) if parts == 2 else (21, 12, 20)
    sites: Any = {
        name: tuple(images(label, size, 10 * n + part, is_regression) for part, size in enumerate(sizes))
        for n, (name, label) in enumerate({"leeds": 1, "turin": 1, "lyon": 0, "porto": 0}.items())
    }
    make_model = partial(plain, outputs) if layers == "plain" else partial(Residual, outputs)
    arguments = {"rounds": 3, "trainer": Sgd(batch_size=10, epochs=1), "workers": 0} | arguments
    federated = federate(make_model, sites, **arguments)
    figures = {
        "scores": {site: astuple(score)[:3] for site, score in federated.scores.items()},
        "local_scores": {site: astuple(score)[:3] for site, score in federated.local_scores.items()},
        "affinity": None if federated.affinity is None else federated.affinity.tolist(),
        "taken": None if federated.mixing is None else federated.mixing.tolist(),
        "traffic": astuple(federated.traffic),
        "spent": federated.spent and {site: astuple(spent) for site, spent in federated.spent.items()},
    }
    models = {site: module.state_dict() for site, module in federated.models.items()}
    return {"models": of_models(models), "log": of_lines([figures])}


def of_memory(
    method: str = "fedfomo",
    options: Mapping[str, Any] | None = None,
    build: Callable[[], nn.Module] = perceptron,
    copies: bool = False,
    **faults: Any,
) -> Digests:
    """Run six clients, not all in every round, by the tests' plainest exchange; hash models and the server's state."""
    problem, algorithm = points_problem(build=build), make_algorithm(method, options)
    if copies:  # two clients that train on the same records, all in one batch, have nearly the same model
        first, _, *others = problem.clients
        problem = replace(problem, clients=[first, first, *others], trainer=Sgd(batch_size=50, epochs=1))
    cohorts = [[0, 1, 2, 3], [0, 1, 2, 4, 5], [0, 1, 3, 4, 5], range(6)]
    state, models = run_rounds(problem, algorithm, InProcess(problem, algorithm, **faults), cohorts)
    kept = hashlib.sha256(repr(sorted(fingerprint(state).items())).encode()).hexdigest()
    return {"models": of_models({f"{n:05d}": {"model": model} for n, model in models.items()}), "log": kept}


def of_loopback(**settings: Any) -> Digests:
    """Run the server and the sites of a deployment within this process."""
    with tempfile.TemporaryDirectory() as place:
        with mock.patch("secrets.choice", min):  # a site's id is drawn: here they follow the order of names
            folder = make_federation(Path(place), seed=3, **settings)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            models = run_federation(folder)
        log = [json.loads(line) for line in (folder.server / "run" / "rounds.jsonl").read_text().splitlines()]
        for line in log:  # the lengths of headers are no result
            del line["bytes_sent"], line["bytes_received"]
        return {"models": of_models(models), "log": of_lines(log)}


def of_models(models: Mapping[str, Mapping[str, Tensor]]) -> str:
    """Hash the tensors of every client, bit for bit."""
    digest = hashlib.sha256()
    for client, tensors in sorted(models.items()):
        for name, tensor in sorted(tensors.items()):
            digest.update(repr((client, name, str(tensor.dtype), tuple(tensor.shape))).encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def of_lines(lines: Iterable[Any]) -> str:
    """Hash JSON values, whatever the order of their keys."""
    words = (json.dumps(_as_first_named(_without_later(line)), sort_keys=True) for line in lines)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


LATER = ("metric", "best_round")  # which a result says of itself since


def _without_later(line: Any) -> Any:
    """Leave out what results have by now; a method's option of such a name stays."""
    return {name: item for name, item in line.items() if name not in LATER} if isinstance(line, dict) else line


def _as_first_named(value: Any) -> Any:
    """Return logs and results with the names that scores had when the digests were recorded."""
    if isinstance(value, list):
        return [_as_first_named(item) for item in value]
    if not isinstance(value, dict):
        return value
    if {"loss", "metric", "num_examples"} <= set(value):
        return {"loss": value["loss"], "accuracy": value["metric"], "num_examples": value["num_examples"]}
    return {name: _as_first_named(item) for name, item in value.items()}


CASES: dict[str, Callable[[], Digests]] = {
    **{name: partial(of_run, flags, name.endswith("/private"), told_before(name)) for name, flags in RUNS.items()},
    **{name: partial(of_sites, **arguments) for name, arguments in SITES.items()},
    **{name: partial(of_memory, **arguments) for name, arguments in IN_MEMORY.items()},
    **{name: partial(of_loopback, **arguments) for name, arguments in LOOPBACK.items()},
}


def compute(name: str) -> tuple[str, Digests, float]:
    """Compute one case; what it raises becomes its result, so that the others are still compared."""
    started = time.monotonic()
    try:
        digests = CASES[name]()
    except Exception:
        digests = {"failed": traceback.format_exc()}
    return name, digests, time.monotonic() - started


def prepare() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)


def compute_all(names: Sequence[str], slowest: int) -> dict[str, Digests]:
    found: dict[str, Digests] = {}
    seconds: dict[str, float] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, context, prepare) as pool:
        for name, digests, lasted in pool.map(compute, names):
            found[name], seconds[name] = digests, lasted
    for name in sorted(seconds, key=seconds.__getitem__, reverse=True)[:slowest]:
        sys.stdout.write(f"{seconds[name]:6.1f} s  {name}\n")
    return found


# --- Comparing and recording ---


def surroundings() -> dict[str, str]:
    """Return all that digests may depend on beside the code."""
    here = {"processor": processor(), "instructions": instructions()}
    return here | {library: version(library) for library in LIBRARIES}


def difference(recorded: Digests | None, found: Digests) -> str | None:
    if "failed" in found:
        return f"failed\n{found['failed']}"
    if recorded is None:
        return "not recorded"
    if recorded.keys() != found.keys():
        return f"gives {', '.join(found)}; recorded: {', '.join(recorded)}"
    parts = [part for part, digest in found.items() if digest != recorded[part]]
    return f"differs in {', '.join(parts)}" if parts else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare digests of final models and logs with those recorded.")
    parser.add_argument("--write", action="store_true", help="record the digests of this code")
    parser.add_argument("--only", default="", metavar="TEXT", help="take the cases with this in their name")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="print the N cases that took longest")
    asked = parser.parse_args()
    names = [name for name in CASES if asked.only in name]
    if not names:
        parser.error(f"no case has '{asked.only}' in its name")
    records: list[dict[str, Any]] = json.loads(RECORDED.read_bytes()) if RECORDED.exists() else []
    recorded = next((record for record in records if record["surroundings"] == surroundings()), None)
    if recorded is None:
        if not asked.write or asked.only:
            sys.stdout.write(
                f"There is no record for this machine: {surroundings()}\n"
                "Record one with --write, from code that is known to be right, and compare with that.\n"
            )
            return 2
        recorded = {"surroundings": surroundings(), "cases": {}}
        records.append(recorded)
    started = time.monotonic()
    found = compute_all(names, asked.slowest)
    took = f"{len(names)} cases in {time.monotonic() - started:.0f} s"
    if asked.write:
        recorded["cases"] = (recorded["cases"] if asked.only else {}) | found
        return write(found, records, took)
    faults = {name: difference(recorded["cases"].get(name), found[name]) for name in names}
    faults |= {name: "recorded, but no case" for name in recorded["cases"] if name not in CASES and asked.only in name}
    faults = {name: fault for name, fault in faults.items() if fault}
    sys.stdout.writelines(f"{name}: {fault}\n" for name, fault in faults.items())
    sys.stdout.write(f"{took}: {f'{len(faults)} differ' if faults else 'all the same'}\n")
    return 1 if faults else 0


def write(found: dict[str, Digests], records: list[dict[str, Any]], took: str) -> int:
    failed = {name: digests["failed"] for name, digests in found.items() if "failed" in digests}
    if failed:
        sys.stdout.writelines(f"{name}: failed\n{fault}\n" for name, fault in failed.items())
        sys.stdout.write(f"{took}: {len(failed)} failed, nothing is recorded\n")
        return 1
    for record in records:
        record["cases"] = {name: record["cases"][name] for name in sorted(record["cases"]) if name in CASES}
    RECORDED.write_text(json.dumps(records, indent=1) + "\n")
    refused = [name for name, digests in found.items() if "refused" in digests]
    sys.stdout.write(f"{took}: recorded; refused: {', '.join(refused) or 'none'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
