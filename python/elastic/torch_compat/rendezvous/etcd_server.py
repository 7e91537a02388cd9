"""torch's module of this name: starts an etcd for tests and for jobs of one host."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import time
from subprocess import Popen, TimeoutExpired
from typing import IO, TYPE_CHECKING, Any

from elastic import _environment
from elastic.errors import ConfigError
from elastic.rendezvous.keepers import etcd
from elastic.torch_compat.utils.api import get_socket_with_port as find_free_port

if TYPE_CHECKING:
    from etcd3gw.client import Etcd3Client

__all__ = ["EtcdServer", "find_free_port", "stop_etcd"]

logger = logging.getLogger(__name__)

BINARY_VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"
READY_PAUSE_S = 0.05
STOP_TIMEOUT_S = 10.0


def stop_etcd(subprocess: Popen[bytes] | None, data_dir: str | None = None) -> None:
    """Stops the process, if it runs, and removes its directory."""
    if subprocess is not None and subprocess.poll() is None:
        subprocess.terminate()
        try:
            subprocess.wait(STOP_TIMEOUT_S)
        except TimeoutExpired:
            subprocess.kill()
            subprocess.wait()
    if data_dir:
        shutil.rmtree(data_dir, ignore_errors=True)


class EtcdServer:
    """A local etcd at a free port. It ends with ``stop()``, or at the exit of this process.

    It runs the program that TORCHELASTIC_ETCD_BINARY_PATH names, by default ``etcd`` in PATH.
    """

    def __init__(self, data_dir: str | None = None) -> None:
        self._host = "localhost"
        self._port = -1
        self._binary = _environment.get(BINARY_VARIABLE, "etcd")
        self._base_data_dir = data_dir or tempfile.mkdtemp(prefix="torchelastic_etcd_data")
        self._etcd_proc: Popen[bytes] | None = None

    def get_port(self) -> int:
        return self._port

    def get_host(self) -> str:
        return self._host

    def get_endpoint(self) -> str:
        return f"{self._host}:{self._port}"

    def get_client(self) -> Etcd3Client:
        """A client, with the ``version`` of the server as torch's has it."""
        client = self._connect()
        client.version = client.status()["version"]
        return client

    def _connect(self) -> Any:
        return etcd.connect("etcd", self.get_endpoint(), {})

    def start(
        self, timeout: float = 60, num_retries: int = 3, stderr: int | IO[bytes] | None = None
    ) -> None:
        """Returns when the server accepts requests; tries another port after a failure."""
        for attempt in range(num_retries):
            try:
                self._start(os.path.join(self._base_data_dir, str(attempt)), timeout, stderr)
            except (OSError, RuntimeError) as error:
                stop_etcd(self._etcd_proc)
                if attempt + 1 >= num_retries:
                    shutil.rmtree(self._base_data_dir, ignore_errors=True)
                    raise
                logger.warning("etcd did not start, trying again: %s", error)
            else:
                atexit.register(stop_etcd, self._etcd_proc, self._base_data_dir)
                return

    def stop(self) -> None:
        stop_etcd(self._etcd_proc, self._base_data_dir)

    def _start(self, data_dir: str, timeout: float, stderr: int | IO[bytes] | None) -> None:
        os.makedirs(data_dir, exist_ok=True)
        with find_free_port() as client, find_free_port() as peer:
            self._port = client.getsockname()[1]
            peers = f"http://{self._host}:{peer.getsockname()[1]}"
        clients = f"http://{self.get_endpoint()}"
        command = [
            *(self._binary, "--name", "elastic", "--data-dir", data_dir),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"elastic={peers}"),
        ]
        self._etcd_proc = Popen(command, stderr=stderr)
        self._wait_until_ready(self._etcd_proc, timeout)

    def _wait_until_ready(self, process: Popen[bytes], timeout: float) -> None:
        client = self._connect()
        end = time.monotonic() + timeout
        while True:
            try:
                client.status()
                return
            except ConfigError:
                raise
            except Exception as error:
                if process.poll() is not None:
                    raise RuntimeError(f"etcd exited with {process.returncode}") from error
                if time.monotonic() > end:
                    raise TimeoutError(f"etcd is not ready after {timeout:g} s") from error
                time.sleep(READY_PAUSE_S)
