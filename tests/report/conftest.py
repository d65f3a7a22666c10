"""A small comparison, run once, and a browser to look at its report."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_calls import SMALL, call

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "comparison"
    call("compare", "--methods", "fedavg", "fedfomo", "--seeds", "0", "1", "--out", str(folder), *SMALL)
    return folder


@pytest.fixture(scope="session")
def page(comparison: Path) -> Path:
    call("report", str(comparison))
    return comparison / "report.html"


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver on the path: apt-get install chromium chromium-driver")
    pytest.importorskip("selenium", reason="selenium is not installed")
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1280,1000",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()
