"""Files whose path the user chose, which are not replaced, and what may not respond."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from elastic import ConfigError, RunResult, WorkerState, _files
from elastic.agent.server.recording import EventLog
from elastic.cli import result_json
from elastic.multiprocessing.errors import evidence
from elastic.multiprocessing.errors.error_handler import ErrorHandler

from support.waiting import eventually

WRITERS: dict[str, Callable[[str], None]] = {
    "result": lambda path: result_json.write(path, "x", RunResult(WorkerState.SUCCEEDED)),
    "error of a worker": lambda path: ErrorHandler()._write_error_file(path, "{}"),
    "error of a job": lambda path: evidence.pass_on_remote("x", 0.0, "", 1, path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_every_writer_follows_a_link_and_keeps_the_mode(
    write: Callable[[str], None], tmp_path: Path
) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old and longer than the new text" * 100)
    target.chmod(0o640)
    link.symlink_to(target)
    write(str(link))
    assert link.is_symlink()
    json.loads(target.read_text())
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_a_regular_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with path.open() as reader:
        _files.replace(str(path), b"new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


def test_a_link_to_nothing_and_a_second_name_stay(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "made")
    _files.replace(str(tmp_path / "link"), b"1")
    assert (tmp_path / "made").read_bytes() == b"1"
    (tmp_path / "second").hardlink_to(tmp_path / "made")
    _files.replace(str(tmp_path / "second"), b"2")
    assert (tmp_path / "made").read_bytes() == b"2"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError) as raised:  # and does not block
        _files.replace(str(path), b"x")
    assert raised.value.errno == errno.ENXIO
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    _files.replace(str(path), b"text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert path.is_fifo()


def test_an_open_file_is_appended_to(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as log:
        log.write(b"1\n")
        (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{log.fileno()}")
        _files.replace(f"/dev/fd/{log.fileno()}", b"2\n")
        _files.replace(str(tmp_path / "stdout"), b"3\n")
        log.write(b"4\n")
    assert (tmp_path / "log").read_bytes() == b"1\n2\n3\n4\n"


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM, errno.EXDEV, errno.EACCES])
def test_what_cannot_be_renamed_over_is_written_in_place(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mount"
    path.write_text("old and long")
    inode = path.stat().st_ino

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    _files.replace(str(path), b"new")
    assert (path.read_bytes(), path.stat().st_ino) == (b"new", inode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fill(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OSError):
        _files.replace(str(path), b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_call_that_never_returns_is_given_up_at_a_signal() -> None:
    never = threading.Event()
    try:
        with pytest.raises(TimeoutError):
            _files.within(1e9, never.wait, lambda: True)
        with pytest.raises(TimeoutError):
            _files.within(0.01, never.wait)
    finally:
        never.set()
    assert _files.within(60.0, lambda: 5) == 5
    with pytest.raises(FileNotFoundError):
        _files.within(60.0, lambda: os.open("/nowhere", os.O_RDONLY))


def test_an_event_log_that_is_a_pipe_never_blocks(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="no process reads this pipe"):
        EventLog(str(tmp_path / "pipe"))
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    log = EventLog(str(tmp_path / "pipe"))
    for _ in range(1000):  # more than a pipe holds
        log.write("x", message="y" * 1000)
    log.close()
    assert json.loads(os.read(reader, 4096).split(b"\n")[0])["event"] == "x"
    os.close(reader)


def test_an_event_log_goes_on_under_its_name_after_a_rotation(tmp_path: Path) -> None:
    path, rotated = tmp_path / "log", tmp_path / "log.1"
    log = EventLog(str(path))
    log.write("first")
    eventually(lambda: path.stat().st_size > 0)
    path.rename(rotated)
    log.write("second")
    log.close()
    events = [json.loads(one.read_text())["event"] for one in (rotated, path)]
    assert events == ["first", "second"]


def test_an_exception_without_text_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error"))
    ErrorHandler().record_exception(Odd())
    message = json.loads((tmp_path / "error").read_text())["message"]
    assert message["message"].startswith("Odd: ")


def test_data_wait_for_a_descriptor_that_does_not_respond() -> None:
    responds = threading.Event()
    written: list[bytes] = []

    def write(data: bytes) -> None:
        responds.wait()
        written.append(data)

    writer = _files.Writer(write)
    whole = b"x" * (_files.QUEUED_BYTES_MAX // 2)
    assert writer.put(b"first")
    assert writer.put(whole)
    assert not writer.put(whole), "it is dropped"
    assert writer.put(b"last")
    assert not writer.flush(0.0)
    responds.set()
    assert writer.flush(60.0)
    assert written == [b"first", whole, b"last"]


def test_nothing_is_to_be_flushed_without_data() -> None:
    assert _files.Writer(lambda data: None).flush(0.0)


def test_two_threads_that_write_first_start_one_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    written: list[bytes] = []
    writer = _files.Writer(written.append)
    start = _files._start_thread

    def start_and_put(run: Callable[[], None]) -> bool:
        """Another thread puts data while the first one starts the writer."""
        if not started:
            started.append(run)
            other = threading.Thread(target=writer.put, args=(b"2",))
            other.start()
            other.join()
            return start(run)
        started.append(run)
        return start(run)

    monkeypatch.setattr(_files, "_start_thread", start_and_put)
    writer.put(b"1")
    assert writer.flush(60)
    assert len(started) == 1 and written == [b"1", b"2"]
