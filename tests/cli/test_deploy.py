"""What commands about real federations say."""

from pathlib import Path

from fedfomo.cli.deploy import what_leaves
from fedfomo.deployment.settings import SiteFolder
from in_memory_transport import make_federation


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
