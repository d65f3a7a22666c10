"""Opens hostile files with every loader under the eyes of an audit hook, which stays as long as its process."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from fedfomo.datasets import download
from hostile_files import hostile_files
from loaders import LOADERS, REFUSALS, Read

FORBIDDEN = {
    *(
        "pickle.find_class",
        "marshal.loads",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
    ),
    *("subprocess.Popen", "socket.connect", "socket.bind", "socket.getaddrinfo", "ctypes.dlopen", "webbrowser.open"),
}
OWN_CODE = tuple(
    str(Path(place).resolve()) for place in (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"])
)


class Watch:
    """What the interpreter was made to do while armed; whatever is forbidden is stopped as well."""

    def __init__(self) -> None:
        self.armed = False
        self.seen: Counter[str] = Counter()
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.armed and (event in FORBIDDEN or (event == "exec" and self._is_foreign(arguments[0]))):
            if event == "marshal.loads" and self._is_import():  # of a codec, say; its code is judged when it runs
                return
            self.seen[event] += 1
            raise PermissionError(f"{event} while loading: {str(arguments)[:200]}")

    def _is_import(self) -> bool:
        return sys._getframe(2).f_code.co_filename.startswith("<frozen importlib")

    def _is_foreign(self, code: Any) -> bool:
        name = getattr(code, "co_filename", "")
        return not name.startswith((*OWN_CODE, "<frozen", str(Path(__file__).resolve().parents[1] / "src")))


def _unpack(folder: Path, content: bytes) -> None:
    archive = folder / "set.tar.gz"
    archive.write_bytes(content)
    download._unpack(archive, folder)


def _trusting(folder: Path, content: bytes) -> None:
    (folder / "m.pt").write_bytes(content)
    torch.load(folder / "m.pt", weights_only=False)


def open_hostile_files(place: Path, count: int) -> dict[str, Any]:
    """Let every loader open so many files; say what the hook saw, and what it saw of a loader that trusts pickles."""
    watch = Watch()
    canaries = place / "canaries"
    canaries.mkdir()
    files = list(hostile_files(canaries, count))
    outcomes: Counter[str] = Counter()
    strays: list[str] = []

    def watched(name: str, read: Read) -> Counter[str]:
        """Open every file with one reader, and return what that made the interpreter do."""
        folder = Path(scratch) / name
        folder.mkdir(exist_ok=True)
        watch.seen = Counter()
        for what, content in files:
            watch.armed = True
            outcome = _try(read, folder, content)
            watch.armed = False
            outcomes[outcome] += 1
            if outcome not in ("refused", "read"):
                strays.append(f"{name}, {what}: {outcome}")
        return watch.seen

    with tempfile.TemporaryDirectory(dir=place) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, loader in LOADERS.items():  # whatever is imported on demand is imported now
            (Path(scratch) / name).mkdir()
            for content in (loader.whole, loader.whole[:-1], b"", b"\xff\x00"):
                _try(loader.read, Path(scratch) / name, content)
        _try(_trusting, Path(scratch), b"")
        seen = sum((watched(name, loader.read) for name, loader in LOADERS.items()), Counter[str]())
        told = {"outcomes": dict(outcomes), "strays": strays[:20]}  # archives have errors of their own
        seen += watched("archive", _unpack)
        twin = watched("trusting", _trusting)
    left = [str(path.relative_to(place)) for path in place.rglob("*") if path != canaries]
    told |= {"seen": seen, "twin": twin, "left": left, "files": len(files), "loaders": len(LOADERS) + 1}
    return told


def _try(read: Read, folder: Path, content: bytes) -> str:
    try:
        read(folder, content)
    except REFUSALS:
        return "refused"
    except Exception as error:  # told by its kind
        return type(error).__name__ + ": " + str(error)[:100]
    return "read"
