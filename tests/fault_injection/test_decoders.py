"""Whatever bytes arrive, decoders refuse them in words: no other error, little memory, no waiting."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch

from bad_uploads import OTHER_TYPES
from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core import messages
from fedfomo.core.algorithm import messages_of
from in_subprocess import apart
from loaders import CHECKPOINTS, DATA, MESSAGES, REFUSALS, SETTINGS, Loader
from mutations import Search, resident_megabytes
from scorecard import Torture
from toy_problems import InProcess, points_problem, run_rounds
from zip_bombs import TRUSTING, explode_all

IN_MEMORY = Path("/dev/shm")  # noqa: S108
MOST_SECONDS, MOST_MEGABYTES = 1.0, 200.0

GROUPS: Mapping[str, tuple[str, Mapping[str, Loader], int]] = {
    "messages": ("15", MESSAGES, 40_000),
    "checkpoints": ("15b", CHECKPOINTS, 40_000),
    "data": ("15c", DATA, 25_000),
    "settings and results": ("15d", SETTINGS, 25_000),
}


def _outcome(loader: Loader, folder: Path, content: bytes) -> str:
    try:
        loader.read(folder, content)
    except REFUSALS as error:
        return f"refused: {error}"
    except Exception as error:  # what this row is about
        return f"STRAY {type(error).__name__}: {error}"
    return "read"


@pytest.mark.parametrize("group", GROUPS)
def test_a_decoder_refuses_in_words_whatever_it_is_given(group: str, torture: Torture) -> None:
    place, loaders, in_full = GROUPS[group]
    count = in_full if torture.is_full else in_full // 200
    slowest, tried, strays = 0.0, count * len(loaders), list[str]()
    ways: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as scratch:
        for name, loader in loaders.items():
            (Path(scratch) / name).mkdir()
            _outcome(loader, Path(scratch) / name, loader.whole)  # whatever is imported on demand is imported now
        before = resident_megabytes()
        for name, loader in loaders.items():
            read = partial(_outcome, loader, Path(scratch) / name)
            search = Search(loader.whole, read, random.Random(name))  # noqa: S311 - the same files every time
            search.run(count)
            slowest, ways[name] = max(slowest, search.slowest), len(search.seen)
            strays += [f"{name}: {outcome}" for outcome in search.seen if outcome.startswith("STRAY")]
        grown = resident_megabytes() - before
    if group == "messages":
        fields, more = _fields(torture)
        tried, strays = tried + fields, strays + more
    twin = _outcome(Loader(b"", lambda folder, content: {}[content]), Path(), b"x").startswith("STRAY")
    torture.record(
        place,
        f"Decoders of {group} survive whatever they are given",
        f"{tried:,} files and messages changed at random, further where a change brought something new:"
        f" {', '.join(loaders)}",
        f"{len(strays)} errors but refusals in words, {sum(ways.values())} different ones of these; slowest"
        f" {1000 * slowest:.0f} ms, memory grew by {max(0.0, grown):.0f} MB",
        not strays and slowest <= MOST_SECONDS and grown <= MOST_MEGABYTES and twin,
        strays=strays[:20],
        ways=ways,
    )


def _fields(torture: Torture) -> tuple[int, list[str]]:
    """Change names and tensors of every message of every method, and count the errors that are no refusals."""
    strays: list[str] = []
    count = 20_000 if torture.is_full else 50
    for name in ALGORITHMS:
        algorithm, problem = make_algorithm(name), points_problem()
        exchange = InProcess(problem, algorithm)
        state, _ = run_rounds(problem, algorithm, exchange, [range(6)] * 2)
        schemas = messages_of(algorithm)
        known = [(schemas.state, state), (schemas.memory, exchange.memories[1])]
        known.append((schemas.download, algorithm.configure_client(state, 1, torch.Generator())))
        known.append((schemas.upload, dict(exchange(2, {1: known[-1][1]}))[1]))
        rng = random.Random(name)  # noqa: S311
        whole = [(schema, messages.pack(message)) for schema, message in known]
        names = sorted(
            {field for _, flat in whole for field in flat} | {"", ".", "0", "model.0", "models.-1", "x" * 99}
        )
        for _ in range(count):
            schema, flat = rng.choice(whole)
            bad = _with_changes(flat, names, rng)
            try:
                messages.validate(schema, messages.unpack(schema, bad), len(problem.initial), 6)
            except messages.MessageError:
                continue
            except Exception as error:  # what this row is about
                strays.append(f"{name}, {sorted(bad)[:5]}: {error!r}")
    return count * len(ALGORITHMS), strays


def _with_changes(flat: messages.Flat, names: list[str], rng: random.Random) -> messages.Flat:
    bad = dict(flat)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(names)
        tensor = bad.get(name, torch.zeros(rng.randrange(4)))
        match rng.randrange(6):
            case 0:
                bad.pop(name, None)
            case 1:
                bad[name] = torch.zeros(tensor.shape, dtype=rng.choice(list(OTHER_TYPES.values())))
            case 2:
                bad[name] = tensor[None] if rng.random() < 0.5 else tensor.flatten()[: rng.randrange(9)]
            case 3:
                bad[f"{name}.{rng.randrange(-1, 9)}"] = tensor
            case 4:
                bad[rng.choice(names)] = tensor
            case _:
                bad[name] = torch.full_like(tensor, rng.choice((0, -1, 2**40)) if tensor.dtype == torch.int64 else 1)
    return bad


def test_bombs_do_not_fill_the_memory(torture: Torture, tmp_path: Path) -> None:
    lines = apart(explode_all, tmp_path, torture.is_full)
    found = [bomb for bomb in lines if bomb["name"] != TRUSTING]
    (twin,) = (bomb for bomb in lines if bomb["name"] == TRUSTING)
    strays = [bomb for bomb in found if bomb["outcome"] not in ("refused", "read")]
    slowest = max(found, key=lambda bomb: bomb["seconds"])
    largest = max(found, key=lambda bomb: bomb["megabytes"])
    torture.record(
        "15e",
        "Files that claim or unpack to more than there is are refused before they fill the memory",
        f"{len(found)} bombs: headers that claim terabytes, 100,000 tensors, overlapping offsets, 300 MB of zeros"
        " in 0.3 MB, a million brackets, pictures of billions of pixels",
        f"{len(strays)} errors but refusals in words; slowest {slowest['seconds']:.2f} s ({slowest['name']}), most"
        f" memory {largest['megabytes']:.0f} MB ({largest['name']}); a trusting reader took"
        f" {twin['megabytes']:.0f} MB",
        not strays
        and slowest["seconds"] <= MOST_SECONDS
        and largest["megabytes"] <= MOST_MEGABYTES
        and twin["megabytes"] > MOST_MEGABYTES,
        found=found,
    )
