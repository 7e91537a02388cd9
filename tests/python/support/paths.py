"""Where the tests find files of the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
STUBS = Path(__file__).with_name("stubs")
