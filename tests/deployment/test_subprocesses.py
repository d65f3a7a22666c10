from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from federations import below
from fedfomo.deployment.subprocesses import ProcessGroup, exclusive_supervisor, is_alive, wait_until
from fedfomo.errors import InputError

SLEEPER = """
import subprocess, sys, time

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
time.sleep(300)
"""

SUPERVISOR = """
import os, sys, time
from fedfomo.deployment.subprocesses import ProcessGroup

with open(os.devnull, "wb") as log:
    print(ProcessGroup([sys.executable, "-c", "import time; time.sleep(300)"], dict(os.environ), log).pid, flush=True)
time.sleep(300)
"""

SECOND = """
from pathlib import Path
from fedfomo.deployment.subprocesses import exclusive_supervisor

with exclusive_supervisor(Path("{}"), "X"):
    pass
"""


def test_a_group_ends_with_all_that_it_started(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        group = ProcessGroup([sys.executable, "-c", SLEEPER], dict(os.environ), log)
    assert wait_until(lambda: len(below(group.pid)) == 1, 30)
    (child,) = below(group.pid)
    os.kill(group.pid, 9)  # the head dies, the child stays
    assert wait_until(lambda: group.exit_code == -9, 30)
    assert is_alive(child)
    group.end()
    assert wait_until(lambda: not is_alive(child), 30)


def test_a_group_ends_with_its_supervisor() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    head = int(supervisor.stdout.readline())
    assert is_alive(head)
    supervisor.kill()
    supervisor.communicate()
    assert wait_until(lambda: not is_alive(head), 30)


def test_there_is_one_supervisor_and_it_ends_what_another_left_behind(tmp_path: Path) -> None:
    around = {**os.environ, "FEDFOMO_TEST": str(tmp_path)}
    orphan = subprocess.Popen([sys.executable, "-c", SLEEPER], env=around)
    stranger = subprocess.Popen([sys.executable, "-c", SLEEPER], env={**around, "FEDFOMO_TEST": "/elsewhere"})
    try:
        assert wait_until(lambda: len(below(orphan.pid)) == 1, 30)
        (child,) = below(orphan.pid)
        second = SECOND.format(tmp_path)
        with exclusive_supervisor(tmp_path, "FEDFOMO_TEST"):
            assert orphan.wait(30) == -9
            assert wait_until(lambda: not is_alive(child), 30)
            assert stranger.poll() is None
            done = subprocess.run([sys.executable, "-c", second], capture_output=True, text=True, check=False)
            assert f"{InputError.__name__}: {tmp_path} is running already" in done.stderr
        assert subprocess.run([sys.executable, "-c", second], check=False).returncode == 0
    finally:
        for pid in below(stranger.pid):
            os.kill(pid, 9)
        stranger.kill()
        stranger.wait()


def test_a_supervisor_leaves_nothing_behind(tmp_path: Path) -> None:
    around = {**os.environ, "FEDFOMO_TEST": str(tmp_path)}
    with exclusive_supervisor(tmp_path, "FEDFOMO_TEST"):
        runaway = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env=around)
        assert runaway.poll() is None
    assert runaway.wait(30) == -9


@pytest.mark.parametrize("pid", [2**22 + 1, 0])
def test_nobody_is_not_alive(pid: int) -> None:
    assert not is_alive(pid)


LOST = """
import os, signal, subprocess, sys
from fedfomo.deployment.subprocesses import end_on_termination, sleep

end_on_termination()
os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGTERM))  # whose handler raises in vain
os.register_at_fork(after_in_child=lambda: None)
if os.fork() == 0:
    os._exit(0)
os.wait()
print("went on", flush=True)
try:
    sleep(60)
except KeyboardInterrupt:
    print("ended", flush=True)
"""


def test_a_process_that_is_told_to_end_while_it_forks_ends_at_the_next_pause() -> None:
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout == "went on\nended\n"
