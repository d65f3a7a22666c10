"""Random changes to whole files and messages, and a search that keeps whatever brought about something new."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MOST_KEPT = 200  # files of one search
NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"255",
    b"65536",
    b"4294967295",
    b"9223372036854775807",
    b"18446744073709551616",
    b"1e999",
)
WORDS = (
    *(
        b"null",
        b"true",
        b"NaN",
        b"[]",
        b"{}",
        b'""',
        b"-Infinity",
        b"[[[[",
        b"}}",
        b"\x00",
        b"\xff\xfe",
        b"../../",
        b"#",
    ),
    *(b"F64", b"BOOL", b"I8", b"F8_E4M3", b"data_offsets", b"__metadata__", b"shape", b":levels", b":step", b"upload/"),
    *(
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"PK\x03\x04",
        b"\n[x]\n",
        b"=",
        b'"',
    ),
)


def mutated(content: bytes, rng: random.Random, other: bytes = b"") -> bytes:
    """Return bytes with one to four changes."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        place = rng.randrange(len(changed) + 1)
        end = min(len(changed), place + rng.choice((1, 1, 2, 4, 8, 64, 1024)))
        match rng.randrange(9):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(changed):
                changed[place] = rng.randrange(256)
            case 2:
                del changed[place:end]
            case 3:
                changed[place:place] = changed[place:end]
            case 4:
                changed[place:end] = rng.choice(WORDS)
            case 5:
                del changed[place:]
            case 6:
                found = list(re.finditer(rb"-?\d+(\.\d+)?", changed))
                if found:
                    number = rng.choice(found)
                    changed[number.start() : number.end()] = rng.choice(NUMBERS)
            case 7:
                changed[place:end] = rng.randbytes(end - place)
            case _:
                cut = rng.randrange(len(other) + 1)
                changed[place:] = other[cut : cut + 4096]
    return bytes(changed)


@dataclass
class Search:
    """Feeds changed files to a reader; those that made it say something new are changed further."""

    whole: bytes
    check_examples: Callable[[bytes], str]  # what came of it, in words
    rng: random.Random
    kept: list[bytes] = field(default_factory=list[bytes])
    seen: set[str] = field(default_factory=set[str])
    slowest: float = 0.0  # seconds of this process

    def run(self, count: int) -> None:
        """Try so many files."""
        self.kept = self.kept or [self.whole]
        for _ in range(count):
            content = mutated(self.rng.choice(self.kept), self.rng, self.whole)
            began = time.process_time()
            outcome = _in_general(self.check_examples(content))
            self.slowest = max(self.slowest, time.process_time() - began)
            if outcome not in self.seen and len(content) < 100_000 and len(self.kept) < MOST_KEPT:
                self.seen.add(outcome)
                self.kept.append(content)


def _in_general(outcome: str) -> str:
    """Leave out whatever differs from file to file."""
    return re.sub(r"/\S+|'[^']*'|\d+|0x\S+", "…", outcome)[:80]


def resident_megabytes() -> float:
    """Return how much memory this process has now."""
    return _kilobytes("VmRSS") / 1e3


def forget_peak() -> None:
    """Let `peak_megabytes` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes() -> float:
    """Return how much memory this process had at most."""
    return _kilobytes("VmHWM") / 1e3


def _kilobytes(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))
