"""Makes the links of README.md absolute, for the page of the package on PyPI.

    python tools/pypi_readme.py    rewrites README.md; .github/workflows/build.yml does it first

The links lead to the repository of pyproject.toml, at the tag of its version. The README in the
repository has relative links, which work in every clone, branch and fork.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def absolute(text: str) -> str:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = [re.search(rf'^{key} = "(.*)"$', project, re.M) for key in ("Homepage", "version")]
    home, version = (one[1] for one in found if one)
    return LINK.sub(rf"]({home}/blob/v{version}/\1)", text)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(encoding="utf-8")), encoding="utf-8")
