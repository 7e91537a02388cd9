"""A real etcd for torch's tests, with the methods of ``EtcdServer``, which is not offered."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Any


class EtcdServer:
    def __init__(self, data_dir: str | None = None) -> None:
        self._directory = data_dir or tempfile.mkdtemp(prefix="torch_suite_etcd_")
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60.0, num_retries: int = 3, stderr: Any = None) -> None:
        with socket.socket() as client, socket.socket() as peer:
            client.bind(("127.0.0.1", 0))
            peer.bind(("127.0.0.1", 0))
            self._port, peers = client.getsockname()[1], peer.getsockname()[1]
        url, peer_url = f"http://127.0.0.1:{self._port}", f"http://127.0.0.1:{peers}"
        self._process = subprocess.Popen(
            [
                *("etcd", f"--data-dir={self._directory}", "--log-level=error"),
                *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
                *(f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"),
                f"--initial-cluster=default={peer_url}",
            ],
            stderr=stderr or subprocess.DEVNULL,
        )
        deadline = time.monotonic() + timeout
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1.0).close()
                return
            except OSError:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.05)
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def get_host(self) -> str:
        return "127.0.0.1"

    def get_port(self) -> int:
        return self._port

    def get_endpoint(self) -> str:
        return f"127.0.0.1:{self._port}"
