"""What `make docs` changes of pages that are also read in the repository: links that leave docs/, and added pages."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FROM_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}  # page of the site: file
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]*)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """List the pages of methods and of results, which come and go."""
    config.nav = [_listed(entry) for entry in config.nav]
    return config


def _listed(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _listed(value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [_listed(value) for value in entry]
    if not entry.endswith("/"):
        return entry
    pages = sorted(path.name for path in (ROOT / "docs" / entry).glob("*.md"))
    return [entry + name for name in sorted(pages, key=lambda name: name != "README.md")]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are at the root of the repository."""
    for page, name in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at pages of the site; a link to a file that is no page becomes its text."""
    source = page.file.src_uri
    inside = FROM_ROOT.get(source, f"docs/{source}")

    def repointed(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        if not path:
            return match[0]
        target = normpath(f"{dirname(inside)}/{path}").lstrip("/")
        if (ROOT / target).is_dir() and (ROOT / target / "README.md").exists():
            target = f"{target}/README.md"
        page_of = {name: page for page, name in FROM_ROOT.items()}
        known = page_of.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if known is None or (known not in FROM_ROOT and not (ROOT / target).is_file()):
            return text
        up = "../" * source.count("/")
        return f"[{text}]({up}{known}{anchor})"

    return LINK.sub(repointed, markdown)
