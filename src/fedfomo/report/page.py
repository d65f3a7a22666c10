"""One self-contained HTML file out of facts: nothing is fetched when it is opened."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from fedfomo.io import make_folder, write_atomically
from fedfomo.report.data import ReportData

SCRIPTS = (
    "core.js",
    "verdict.js",
    "gains.js",
    "matrix.js",
    "client.js",
    "relations.js",
    "cost.js",
    "closing.js",
    "theme.js",
    "start.js",
)
COMPARISON_SCRIPTS = ("core.js", "theme.js", "comparison.js")


def write_report(facts: ReportData, path: Path) -> Path:
    """Write the page aside and put it in place at once: a browser may be reading the one before."""
    return write_page(path, _title(facts), facts.to_json(), SCRIPTS)


def write_page(path: Path, title: str, facts: str, scripts: tuple[str, ...]) -> Path:
    """Fill the template and put the page in place."""
    make_folder(path.parent)
    write_atomically(path, render(title, facts, scripts).encode(), durable=False)
    return path


def render(title: str, facts: str, scripts: tuple[str, ...]) -> str:
    """Return the page: style, charting library, script and facts, each once."""
    script = "\n".join(_asset(name) for name in scripts)
    return Template(_asset("page.html")).substitute(
        title=title.replace("&", "&amp;").replace("<", "&lt;"),
        style=_asset("style.css"),
        facts=facts.replace("<", "\\u003c"),  # names are other people's words: they must not end the script
        library=_asset("plotly-cartesian.min.js").replace("</script", "<\\/script"),
        script=f'(() => {{\n"use strict";\n{script}\n}})();',
    )


def _title(facts: ReportData) -> str:
    return f"{facts.method}: {facts.title}"


@cache
def _asset(name: str) -> str:
    return (files("fedfomo.report") / "assets" / name).read_text(encoding="utf-8")
