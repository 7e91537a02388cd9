"""A subclass of SimpleElasticAgent whose workers run on two other hosts."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elastic import StoreServer, WorkerSpec, WorkerState
from elastic.agent.server import RunResult, SimpleElasticAgent, WorkerGroup
from elastic.multiprocessing import ProcessFailure
from elastic.rendezvous import RendezvousParameters

from support.launching import DEADLINE_S
from support.paths import STUBS
from support.stubs.stub_handler_plug_in import CountingHandler

HOST_PROGRAM = STUBS / "stub_worker_host.py"


@contextmanager
def hosts(*addresses: str) -> Iterator[list[tuple[str, int]]]:
    """Processes that run workers, each at an address of its own."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(HOST_PROGRAM), address], stdout=subprocess.PIPE, text=True
        )
        for address in addresses
    ]
    try:
        ports = [int(process.stdout.readline()) for process in processes if process.stdout]
        yield list(zip(addresses, ports, strict=True))
    finally:
        for process in processes:
            process.kill()
            process.communicate()


class RemoteAgent(SimpleElasticAgent):
    """The id of a worker is HOST:PORT of its connection."""

    def __init__(self, spec: WorkerSpec, places: list[tuple[str, int]]) -> None:
        super().__init__(spec, exit_barrier_timeout=10)
        self.rounds: list[list[str]] = []  # the ids of each round
        self._places = places
        self._connections: dict[int, socket.socket] = {}
        self._codes: dict[int, int] = {}

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._codes.clear()
        ids = {}
        for worker in worker_group.workers:
            place = self._places[worker.local_rank % len(self._places)]
            connection = socket.create_connection(place)
            env = {
                "RANK": str(worker.global_rank),
                "WORLD_SIZE": str(worker.world_size),
                "RESTARTS": str(len(self.rounds)),
            }
            order = {"argv": [worker_group.spec.entrypoint, *worker_group.spec.args], "env": env}
            connection.sendall(json.dumps(order).encode() + b"\n")
            self._connections[worker.local_rank] = connection
            ids[worker.local_rank] = f"{place[0]}:{connection.getsockname()[1]}"
        self.rounds.append(list(ids.values()))
        return ids

    def _wait(self, seconds: float) -> None:
        running = [c for rank, c in self._connections.items() if rank not in self._codes]
        select.select(running, [], [], DEADLINE_S)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        for rank, connection in self._connections.items():
            if rank not in self._codes and select.select([connection], [], [], 0)[0]:
                self._codes[rank] = int(connection.recv(16))
        failures = {
            worker_group.workers[rank].global_rank: ProcessFailure(rank, 0, code, "")
            for rank, code in self._codes.items()
            if code != 0
        }
        if failures:
            return RunResult(WorkerState.FAILED, failures=failures)
        is_done = len(self._codes) == len(self._connections)
        return RunResult(WorkerState.SUCCEEDED if is_done else WorkerState.HEALTHY)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        for connection in self._connections.values():
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(16):
                continue
            connection.close()
        self._connections.clear()

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        self._stop_workers(self._worker_group)


def run(server: StoreServer, run_id: str, program: str) -> tuple[RemoteAgent, RunResult]:
    endpoint = f"{server.host}:{server.port}"
    handler = CountingHandler(RendezvousParameters("counting", endpoint, run_id, 1, 1))
    spec = WorkerSpec("trainer", 4, handler, None, "/bin/sh", ("-c", program), 1, 0.1)
    with hosts("127.0.0.2", "127.0.0.3") as places:
        agent = RemoteAgent(spec, places)
        return agent, agent.run("trainer")


def test_workers_on_two_hosts_are_restarted_and_have_ids_of_host_and_port(tmp_path: Path) -> None:
    program = (
        f"echo $WORLD_SIZE > {tmp_path}/$RESTARTS.$RANK; [ $RESTARTS = 1 ] && exit 0; "
        "[ $RANK = 2 ] && exit 7; exec sleep 600"
    )
    with StoreServer("127.0.0.1", 0) as server:
        agent, result = run(server, "restarted", program)
    assert (result.state, result.exit_code) == (WorkerState.SUCCEEDED, 0)
    assert len(agent.rounds) == 2
    for ids in agent.rounds:
        assert [one.split(":")[0] for one in ids] == ["127.0.0.2", "127.0.0.3"] * 2
        assert len(set(ids)) == 4 and all(int(one.split(":")[1]) > 0 for one in ids)
    assert [worker.id for worker in agent.get_worker_group().workers] == agent.rounds[1]
    assert sorted(os.listdir(tmp_path))[-4:] == ["1.0", "1.1", "1.2", "1.3"]


def test_a_spent_budget_of_remote_workers_is_a_failure_with_their_code() -> None:
    with StoreServer("127.0.0.1", 0) as server:
        agent, result = run(server, "spent", "[ $RANK = 1 ] && exit 9; exec sleep 600")
    assert result.is_failed() and result.restart_count == 1
    assert len(agent.rounds) == 2
    assert {rank: one.exitcode for rank, one in result.failures.items()} == {1: 9}
