"""The thread that writes to what may not respond."""

from __future__ import annotations

import threading

from elastic import _writer
from elastic._writer import Writer


def test_data_wait_for_a_descriptor_that_does_not_respond() -> None:
    responds = threading.Event()
    written: list[bytes] = []

    def write(data: bytes) -> None:
        responds.wait()
        written.append(data)

    writer = Writer(write)
    whole = b"x" * (_writer.QUEUED_BYTES_MAX // 2)
    assert writer.put(b"first")
    assert writer.put(whole)
    assert not writer.put(whole), "it is dropped"
    assert writer.put(b"last")
    assert not writer.flush(0.0)
    responds.set()
    assert writer.flush(60.0)
    assert written == [b"first", whole, b"last"]


def test_nothing_is_to_be_flushed_without_data() -> None:
    assert Writer(lambda data: None).flush(0.0)
