"""What commands about real federations say."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli_calls import call, refused
from fedfomo.cli import deploy
from fedfomo.cli.deploy import what_leaves
from fedfomo.core.local_training import Sgd
from fedfomo.deployment import status, subprocesses
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from in_memory_transport import make_federation, run_federation


def test_a_federation_trains_as_federate_does_unless_told_otherwise(tmp_path: Path) -> None:
    call("deploy", "init", "--sites", "leeds,turin", "--folder", str(tmp_path / "federation"))
    assert FederationFolder(tmp_path / "federation").config().training == Sgd()


def test_a_site_is_told_what_leaves_it(tmp_path: Path) -> None:
    site = SiteFolder(make_federation(tmp_path).sites / "leeds")
    unprotected = what_leaves(site)
    assert "models as they were trained, test scores" in unprotected
    assert "never examples" in unprotected
    site.privacy_settings.write_text('mode = "deployment"\nepsilon = 8.0\ndelta = 1e-5\n')
    protected = what_leaves(site)
    assert "models trained with noise" in protected
    assert "scores" not in protected
    assert "ε at most 8 (δ = 1e-05); validation records: no guarantee" in protected


def test_a_server_that_has_finished_ends_well_whatever_is_to_be_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_federation(tmp_path)
    run_federation(folder)
    monkeypatch.setattr(status, "expiring", lambda *_: ["server.crt ends on 2031-01-01"])
    monkeypatch.setattr(subprocesses, "end_on_termination", lambda: None)
    call("deploy", "server", str(folder.path))
    told = capsys.readouterr().out
    assert "finished; every site's model is in its folder" in told
    assert "PROBLEM: server.crt ends on 2031-01-01" in told
    with pytest.raises(SystemExit):  # as whoever watches it wants to know
        deploy.status([str(folder.path)])


HOLDER = """
import time
from pathlib import Path
from fedfomo.io import lock

held = lock(Path("{}"))
print(1, flush=True)
time.sleep(60)
"""


def test_the_log_of_a_server_that_runs_is_not_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_federation(tmp_path)
    run_federation(folder)
    before = folder.deliveries.read_bytes()
    monkeypatch.setattr(subprocesses, "end_on_termination", lambda: None)
    command = [sys.executable, "-c", HOLDER.format(folder.path / "supervisor.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            assert "is running already" in refused(capsys, "deploy", "server", str(folder.path), "--new-log")
        finally:
            holder.kill()
    assert folder.deliveries.read_bytes() == before
    call("deploy", "server", str(folder.path), "--new-log")
    assert not folder.deliveries.exists()
    assert [path.read_bytes() for path in folder.server.glob("deliveries-*.jsonl")] == [before]


def test_the_help_says_which_command_runs_where(capsys: pytest.CaptureFixture[str]) -> None:
    call("deploy", "--help")
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert list(said)[:3] == ["init", "site", "server"]
    assert all(" At the server" in line or " At each site" in line for line in said.values())


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("add-site", "NAME"),
        ("remove-site", "NAME"),
        ("renew", "NAME"),
        ("server", "FEDERATION"),
        ("run", "NAME FEDERATION"),
        ("site", "SITE"),
        ("status", "FEDERATION|SITE"),
    ],
)
def test_what_a_command_takes_has_a_name(verb: str, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    call("deploy", verb, "--help")
    usage = capsys.readouterr().out.splitlines()[0]
    assert names in usage
    assert "STR" not in usage.split(" [--")[0]
    assert "PATH" not in usage.split(" [--")[0]
