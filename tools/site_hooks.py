"""What the site of the manual adds to the pages of docs/ (mkdocs.yml).

The README is the first page. Links to files outside of docs/ lead to the repository, whose address
is the one of pyproject.toml; a link to a file that does not exist ends the build.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")
log = logging.getLogger("mkdocs.hooks.site")


def on_config(config: Any) -> Any:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    config.site_url = urls["Documentation"]
    config.repo_url = urls["Homepage"]
    return config


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "index.md", content=_first_page()))
    return files


def _first_page() -> str:
    """The README: its links begin at the root, and its table of reports has Markdown in it."""
    text = (ROOT / "README.md").read_text().replace("<td>", '<td markdown="block">')
    text = text.replace("<table>", '<table markdown="block">').replace(
        "<tr>", '<tr markdown="block">'
    )
    return LINK.sub(lambda found: f"]({_from_docs(found[1])})", text)


def _from_docs(target: str) -> str:
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    return LINK.sub(
        lambda found: _to_repository(found, page.file.src_uri, config.repo_url), markdown
    )


def _to_repository(found: re.Match[str], page: str, repository: str) -> str:
    target = found[1]
    if not target.startswith("../"):
        return found[0]
    path, _, anchor = target.removeprefix("../").partition("#")
    if not (ROOT / path).exists():
        log.warning("%s: a link to %s, which does not exist", page, path)
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"]({repository}/{kind}/main/{path}{'#' + anchor if anchor else ''})"
