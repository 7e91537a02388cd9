"""The site of the manual is built without a warning, and commands of its pages parse."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from elastic.cli import command_line

from support.launching import run_program
from support.paths import ROOT


def test_the_site_has_every_page_and_no_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("material")
    done = run_program(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path], cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    pages = {path.parent.name for path in tmp_path.glob("*/index.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= pages
    first = (tmp_path / "index.html").read_text()
    assert "stopped by the launcher, not failed: rank 0" in first and "```" not in first


def test_the_commands_for_users_of_other_launchers_parse() -> None:
    page = (ROOT / "docs/start.md").read_text()
    commands = re.findall(r"`(?:[^`\n]* )?(elastic-launch [^`…\n]*(?:\.py|\.train)[^`\n]*)`", page)
    assert len(commands) >= 6
    for command in commands:
        line = command_line.read(shlex.split(command)[1:], {})
        assert line.program.endswith(("train.py", "torchtitan.train")) and not line.warnings
