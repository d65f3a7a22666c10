"""The library that draws the charts of reports is the one that its origin file names."""

import hashlib
import tomllib
from pathlib import Path

import fedfomo.report

ASSETS = Path(fedfomo.report.__file__).parent / "assets"
ORIGIN = tomllib.loads((ASSETS / "plotly-origin.toml").read_text())


def test_the_file_is_unchanged() -> None:
    content = (ASSETS / ORIGIN["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == ORIGIN["sha256"]
    assert f"(cartesian - minified) v{ORIGIN['version']}\n" in content[:200].decode()


def test_its_licence_is_shipped_and_declared() -> None:
    licence = ASSETS / ORIGIN["license-file"]
    assert licence.read_text().startswith(f"{ORIGIN['license']} License")
    root = Path(__file__).parents[2]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["license-files"]
    assert f"src/fedfomo/report/assets/{licence.name}" in declared
