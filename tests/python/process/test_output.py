"""The inherited stderr of a worker is copied unchanged and quoted in the report."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
from pathlib import Path

from support.launching import (
    DEADLINE_S,
    clean_environment,
    free_endpoint,
    launch,
    launcher_command,
    shell_job,
)

TIME = r"    time    \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \S+"


def test_every_node_shows_the_last_lines_of_the_worker_that_failed_first() -> None:
    script = "test $RANK = 1 && { echo boom of $RANK >&2; exit 7; }; exec sleep 1000"
    with shell_job(free_endpoint(), "2", script, "--shutdown-timeout=5") as nodes:
        nodes.start("--node-rank=0")
        nodes.start("--node-rank=1")
        done = nodes.finish_with(7, 7)
    for node in done:
        assert "    last lines of its stderr:\n      | boom of 1" in node.stderr, node.stderr
        assert f"    host    {socket.gethostname()}\n" in node.stderr
        assert re.search(TIME, node.stderr), node.stderr
    assert done[0].stderr.count("boom of 1") + done[1].stderr.count("boom of 1") == 3


def test_a_terminal_stays_one_and_its_lines_end_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "print(*(os.isatty(fd) for fd in (0, 1, 2)), os.get_terminal_size(2).columns)\n"
        "print('error', file=sys.stderr)\n"
        "sys.exit(5)\n"
    )
    screen, side = pty.openpty()
    process = subprocess.Popen(
        launcher_command("--standalone", str(program)),
        env=clean_environment(),
        stdin=side,
        stdout=side,
        stderr=side,
    )
    os.close(side)
    shown = b""
    while True:
        try:
            shown += os.read(screen, 65536)
        except OSError:  # no process has the terminal open
            break
    os.close(screen)
    assert process.wait(DEADLINE_S) == 5
    lines = shown.split(b"\r\n")
    assert lines[0].startswith(b"True True True "), shown
    assert lines[1] == b"error"
    assert b"\r\r" not in shown
    assert lines[2] == b""  # also ends a line that the worker has not ended
    assert b"failed: rank 0" in lines[3], shown


def test_without_capture_the_report_quotes_nothing() -> None:
    words = ("--standalone", "--no-stderr-capture", "--no-python", "sh", "-c")
    done = launch(*words, "echo boom >&2; exit 3")
    assert done.returncode == 3
    assert done.stderr.startswith("boom\n")
    assert "last lines" not in done.stderr
