"""Starting Flower's own processes, keeping them running, and leaving none behind.

Each runs in a process group of its own: when its head dies, by whatever signal, the rest of the group is ended too,
since Flower leaves orphans otherwise. All are set to keep telemetry and update checks to themselves.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

from fedfomo.errors import InputError, sentence_of
from fedfomo.io import lock
from fedfomo.simulation.process_utils import exit_with_parent

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


LARGEST_LOG = 20 * 2**20  # bytes

_asked_to_end = threading.Event()


def end_on_termination() -> None:
    """Let SIGTERM end this process as Ctrl-C does, at once where that can be, and else at the next pause.

    What a signal's handler raises is lost if the signal comes while a process is being forked.
    """

    def end(number: int, frame: FrameType | None) -> None:
        _asked_to_end.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


@contextmanager
def ends_in_one_line() -> Generator[None]:
    """End this process with one line, and with code 2, where its people can put right what is wrong."""
    try:
        yield
    except InputError as error:
        sys.stderr.write(f"{sentence_of(error)}\n")
        raise SystemExit(2) from None


def sleep(seconds: float) -> None:
    """Pause, unless this process was asked to end."""
    if _asked_to_end.is_set():
        raise KeyboardInterrupt
    time.sleep(seconds)


class ProcessGroup:
    """A process with all that it starts; without a log it writes to the terminal."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes] | None
    ) -> None:  # None: the terminal
        self._process = subprocess.Popen(  # noqa: S603 - commands are made here, of paths and no shell
            command,
            env=environment,
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(exit_with_parent, os.getpid()),
        )

    @property
    def pid(self) -> int:
        """The head's process id, which is the group's as well."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """What the head ended with; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End the whole group, the head first and gently."""
        if self.exit_code is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def rotate(path: Path, most: int = LARGEST_LOG) -> None:
    """Move what a log holds to a file beside it once it is too large; whoever writes to its end goes on doing so."""
    if path.exists() and path.stat().st_size > most:
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)


@contextmanager
def exclusive_supervisor(folder: Path, variable: str) -> Generator[None]:
    """Be the only supervisor of a folder: end what one that was killed has left behind, and leave nothing oneself."""
    with lock(folder / "supervisor.lock", f"{folder} is running already: stop that first"):
        mark = f"{variable}={folder}"
        _end_all(mark)
        try:
            yield
        finally:
            _end_all(mark)  # a ServerApp, say, that left its group


def _end_all(mark: str) -> None:
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Return this user's processes that were started with an entry in their environment."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            entries = (place / "environ").read_bytes().split(b"\0")
            found += [int(place.name)] if mark.encode() in entries and int(place.name) != os.getpid() else []
    return found


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the surroundings of Flower's processes: quiet, at home in one folder, with this Python's programs."""
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", "")])
    home.mkdir(mode=0o700, exist_ok=True)
    return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(home), **more}


def program(name: str) -> str:
    """Find one of Flower's programs beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise InputError("federations run on Flower: pip install 'fedfomo[flower]'")
    return str(path)


def wait_until(holds: Callable[[], bool], seconds: float, poll: float = 0.2) -> bool:
    """Wait until something holds; return False if it does not in time."""
    closes = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > closes:
            return False
        sleep(poll)
    return True


def answers(host: str, port: int) -> bool:
    """Tell whether anybody listens."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def free_port() -> int:
    """Find a port on this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and not been buried does not."""
    place = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        with suppress(OSError, IndexError):
            return place.read_text().rpartition(")")[2].split()[0] != "Z"
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607
    return state.stdout.strip()[:1] not in ("", "Z")
