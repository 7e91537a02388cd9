"""Log files and their lines on the console, with real launchers."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.launching import clean_environment, launch
from support.plug_ins import install

PRINT = "import os; rank = os.environ['RANK']; "


def run(*options: str, code: str, nproc: int = 2) -> str:
    """The launcher's stdout."""
    done = launch("--standalone", f"--nproc-per-node={nproc}", *options, "--no-python",
                  "python3", "-c", PRINT + code)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_prefix_template_names_host_round_and_time() -> None:
    template = "${hostname} ${round} ${rank} ${role_name} ${time}|"
    [line] = run(f"--log-line-prefix-template={template}", "-t1", code="print('hello')",
                 nproc=1).splitlines()  # fmt: skip
    prefix, text = line.split("|")
    *names, time = prefix.split(" ")
    assert names == [socket.gethostname(), "0", "0", "default"]
    assert len(time) == len("2026-03-01T12:34:56.789")
    assert text == "hello"


# The ranks write at the same time, as after a collective; a busy machine may still delay one of
# them by more than a line waits for the others, so there are several tries.
TOGETHER = """
import pathlib
here = pathlib.Path(os.environ['MEETING'])
(here / rank).touch()
while len(list(here.iterdir())) < 3: os.sched_yield()
os.write(1, f'same\\nonly {rank}\\nlast'.encode())
"""


def test_identical_lines_of_all_ranks_are_shown_once(tmp_path: Path) -> None:
    only = [f"[{rank}] only {rank}" for rank in range(3)]
    for attempt in range(10):
        meeting = tmp_path / str(attempt)
        meeting.mkdir()
        lines = launch(
            *("--standalone", "--nproc-per-node=3", "-t1", "--merge-lines"),
            *("--log-line-prefix-template=[${rank}] ", "--no-python"),
            *("python3", "-c", PRINT + TOGETHER),
            environ=clean_environment(MEETING=str(meeting)),
        ).stdout.splitlines()
        # The last line is unfinished: it is complete when the workers have ended.
        if "[0-2] same" in lines and "[0-2] last" in lines:
            break
    assert sorted(lines) == ["[0-2] last", "[0-2] same", *only]


def test_filtered_lines_are_copied_to_a_file_of_the_round(tmp_path: Path) -> None:
    code = "import sys; print('loss', rank); print('other'); print('E, x', file=sys.stderr)"
    options = [f"--log-dir={tmp_path}", "-t1", "-r2"]
    options += ["--duplicate-stdout-filters=loss", "--duplicate-stderr-filters=E,,"]
    shown = run(*options, code=code)
    [attempt] = tmp_path.glob("*/attempt_0")
    copied = sorted((attempt / "filtered_stdout.log").read_text().splitlines())
    assert copied == ["[default0]:loss 0", "[default1]:loss 1"]
    assert (attempt / "filtered_stderr.log").read_text().count("E, x\n") == 2
    assert "E, x" not in shown


def test_a_filter_and_a_limit_of_streams_without_a_file_have_no_effect() -> None:
    options = ["--duplicate-stdout-filters=a", "--log-max-bytes=1M"]
    done = launch("--standalone", *options, "--no-python", "true", check=True)
    assert "--duplicate-stdout-filters has no effect" in done.stderr
    assert "--log-max-bytes has no effect" in done.stderr


@pytest.fixture
def stuck_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose file system, a FUSE mount without a server, never responds."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("/dev/fuse cannot be opened")
    mounted = tmp_path / "stuck"
    mounted.mkdir()
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    try:
        if libc.mount(b"stuck", bytes(mounted), b"fuse", 0, options.encode()) != 0:
            pytest.skip("a FUSE mount is not permitted")
        yield mounted
    finally:
        os.close(device)  # every pending access fails
        libc.umount2(bytes(mounted), 2)


def test_a_log_directory_that_does_not_respond_is_one_sentence(stuck_directory: Path) -> None:
    words = ("--standalone", "--start-timeout=1", "--no-python", "true")
    done = launch("-r3", f"--log-dir={stuck_directory}/logs", *words)
    sentence = "did not respond within 1 s; use a directory on another file system"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"elastic-launch: --log-dir: {stuck_directory}/logs {sentence}\n"
    dead = clean_environment(TMPDIR=str(stuck_directory))
    done = launch("-r3", *words, environ=dead)
    assert done.returncode == 2
    assert done.stderr == (
        "elastic-launch: --redirects without --log-dir: the directory for temporary files "
        f"(TMPDIR) {sentence}\n"
    )
    # The temporary directory is made by the agent.
    done = launch("-t3", *words, environ=dead)
    assert done.returncode == 74
    assert f"the directory for temporary files (TMPDIR) {sentence}" in done.stderr


PLUG_IN = """
from elastic.multiprocessing.logs_specs import LogsDest, LogsSpecs


class OwnSpecs(LogsSpecs):
    root_log_dir = ""

    def reify(self, envs):
        paths = {rank: f"{self._root_log_dir}/{env['ELASTIC_ROUND']}.{rank}.txt"
                 for rank, env in envs.items()}
        for env in envs.values():
            env["FROM_PLUG_IN"] = "yes"
        return LogsDest(stdouts=paths, tee_stdouts=paths)
"""


def test_a_plug_in_chooses_the_files_and_adds_variables(tmp_path: Path) -> None:
    (tmp_path / "own_specs.py").write_text(PLUG_IN)
    path = install(tmp_path, "torchrun.logs_specs", own="own_specs:OwnSpecs")
    logs = tmp_path / "logs"
    # A worker that fails before the other one has begun would keep it from opening its file.
    both = f"test -s {logs}/0.0.txt -a -s {logs}/0.1.txt"
    script = (
        f"echo $RANK $FROM_PLUG_IN; until {both}; do sleep 0.02; done; "
        "test $ELASTIC_ROUND = 1 || exit 3"
    )
    done = launch("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--logs-specs=own",
                  f"--log-dir={logs}", "--no-python", "sh", "-c", script,
                  environ=clean_environment(PYTHONPATH=path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in logs.iterdir()) == [
        "0.0.txt", "0.1.txt", "1.0.txt", "1.1.txt"
    ]  # fmt: skip
    assert (logs / "1.1.txt").read_text() == "1 yes\n"
    assert "[default1]:1 yes\n" in done.stdout


def test_files_of_limited_size_keep_the_last_lines(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfor i in range(3000): print(f'{i} ' + 'x' * 30)\n"
        "os.sys.stdout.flush()\nfor i in range(500): os.write(2, b'%d ' % i + b'y' * 40 + b'\\n')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    options = ["--standalone", "-t1", "-r2", "--log-max-bytes=8K", "--log-max-files=3"]
    done = launch(*options, f"--log-dir={tmp_path}", "--no-python", "python3", "-c", code)
    assert done.returncode == 137, done.stderr
    lines = [f"{i} " + "x" * 30 for i in range(3000)]
    assert done.stdout.splitlines() == [f"[default0]:{line}" for line in lines]
    [directory] = tmp_path.glob("*/attempt_0/0")
    assert sorted(file.name for file in directory.iterdir()) == [
        f"{stream}.log{age}" for stream in ("stderr", "stdout") for age in ("", ".1", ".2")
    ]
    files = [directory / name for name in ("stdout.log.2", "stdout.log.1", "stdout.log")]
    texts = [file.read_text() for file in files]
    assert all(len(text) <= 8192 and text.endswith("\n") for text in texts)
    kept = "".join(texts).splitlines()
    assert kept == lines[-len(kept) :]
    assert "499 " + "y" * 40 in done.stderr  # in the report


def test_the_report_has_a_traceback_that_two_files_share(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nfor i in range(203): print(i, 'y' * 16, file=sys.stderr)\n"
        "raise RuntimeError('the cause')\n"
    )
    done = launch("--standalone", "-r2", "--log-max-bytes=4K", f"--log-dir={tmp_path}", str(script))
    assert done.returncode == 1
    [older] = tmp_path.glob("*/attempt_0/0/stderr.log.1")
    assert len(older.read_text()) > 4000
    assert f"logs    {tmp_path}/" in done.stderr
    assert "      | RuntimeError: the cause" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr
