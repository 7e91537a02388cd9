"""Rendezvous handlers without agents, in processes forked from one process.

Reads {"kind": K, "port": N, "nodes": N, "name": S} per line and answers with the seconds from the
common start to the last node's next_rendezvous(). K: "coordinator", elastic at a coordinator;
"shared", elastic over a TCPStore; "torch", torch over a TCPStore.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from gate import Gate

ALARM_SECONDS = 200


def elastic_handler(backend: str, port: int, nodes: int, name: str) -> Any:
    from elastic.rendezvous import RendezvousParameters, get_rendezvous_handler

    endpoint = f"127.0.0.1:{port}"
    settings = {"is_host": "false"} if backend == "c10d" else {}
    parameters = RendezvousParameters(backend, endpoint, name, nodes, nodes, **settings)
    return get_rendezvous_handler(parameters)


def torch_handler(port: int, nodes: int, name: str) -> Any:
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    store = TCPStore("127.0.0.1", port, is_master=False)
    backend = C10dRendezvousBackend(store, name)
    return DynamicRendezvousHandler.from_backend(name, store, backend, nodes, nodes, "127.0.0.1")


KINDS: dict[str, Callable[[int, int, str], Any]] = {
    "coordinator": lambda port, nodes, name: elastic_handler("c10d", port, nodes, name),
    "shared": lambda port, nodes, name: elastic_handler("tcpstore", port, nodes, name),
    "torch": torch_handler,
}


def node_main(kind: str, port: int, nodes: int, name: str, meet: Gate, end: Gate) -> None:
    signal.alarm(ALARM_SECONDS)  # a node ends even if another one's failure leaves it waiting
    handler = KINDS[kind](port, nodes, name)
    meet.pass_through()
    handler.next_rendezvous()
    meet.leave()
    end.pass_through()


def measure(kind: str, port: int, nodes: int, name: str) -> float:
    meet, end = Gate(nodes), Gate(nodes)
    pids = []
    for _ in range(nodes):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                node_main(kind, port, nodes, name, meet, end)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    seconds = meet.time()
    end.open()
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        if status != 0:
            raise RuntimeError(f"a node ended with status {status}")
    return seconds


def main(kinds: list[str]) -> None:
    # Import before the fork, so that the modules are imported once.
    if "torch" in kinds:
        import torch.distributed.elastic.rendezvous.dynamic_rendezvous  # noqa: F401
    if set(kinds) & {"coordinator", "shared"}:
        import elastic.torch_compat.rendezvous.handlers  # noqa: F401
    for line in sys.stdin:
        print(json.dumps(measure(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
