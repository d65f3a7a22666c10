"""What commands about real federations say."""

from pathlib import Path

from cli_calls import call
from fedfomo.cli.deploy import what_leaves
from fedfomo.core.local_training import Sgd
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from in_memory_transport import make_federation


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
