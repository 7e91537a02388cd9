"""One node of a rendezvous, controlled by lines on its stdin; replies with one line each.

    python stub_rendezvous_node.py WHERE ENDPOINT RUN_ID MIN MAX KEY=VALUE ...

WHERE is a backend's name, or a kind of store that this file implements.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pickle
import sys
import time
from typing import Any

from elastic import ElasticError, rendezvous


class PickledFileBackend:
    """A backend as a user may have written it for torch: no base class, tokens are numbers."""

    name = "pickled-file"

    def __init__(self, path: str) -> None:
        self._path = path

    def get_state(self) -> tuple[bytes, Any] | None:
        try:
            with open(self._path, "rb") as file:
                version, state = pickle.load(file)
        except FileNotFoundError:
            return None
        return state, version

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        with open(self._path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            there = self.get_state()
            if (there[1] if there else None) != token:
                return None if there is None else (*there, False)
            version = (token or 0) + 1
            with open(self._path + ".new", "wb") as fresh:
                pickle.dump((version, state), fresh)
            os.replace(self._path + ".new", self._path)
        return state, version, True


def shared_store(where: str, endpoint: str) -> Any:
    import torch.distributed as dist

    if where == "torch-file-store":
        return dist.FileStore(endpoint)
    host, _, port = endpoint.rpartition(":")
    return dist.TCPStore(host, int(port), is_master=False)


def make_handler(
    where: str, endpoint: str, run_id: str, least: int, most: int, config: dict[str, str]
) -> rendezvous.RendezvousHandler:
    if where in ("torch-store", "torch-file-store"):
        store = shared_store(where, endpoint)
        backend: Any = rendezvous.C10dRendezvousBackend(store, run_id)
    elif where == "pickled-file":
        backend = PickledFileBackend(endpoint)
    else:
        parameters = rendezvous.RendezvousParameters(where, endpoint, run_id, least, most, **config)
        return rendezvous.get_rendezvous_handler(parameters)
    parameters = rendezvous.RendezvousParameters("c10d", endpoint, run_id, least, most, **config)
    return rendezvous.create_handler(None, backend, parameters)


def answer(handler: rendezvous.RendezvousHandler, state: dict[str, Any], words: list[str]) -> str:
    match words:
        case ["next-aloud"]:
            print("now", flush=True)
            return answer(handler, state, ["next"])
        case ["next"]:
            state["info"] = info = handler.next_rendezvous()
            where = info.bootstrap_store_info
            return f"{info.rank} {info.world_size} {where.master_addr}:{where.master_port}"
        case ["set", key, value]:
            state["info"].store.set(key, value)
            return "ok"
        case ["get", key]:
            return str(state["info"].store.get(key).decode())
        case ["waiting"]:
            while (nodes := handler.num_nodes_waiting()) == 0:
                time.sleep(0.01)
            return str(nodes)
        case ["waiting-now"]:
            return str(handler.num_nodes_waiting())
        case ["keep-interpreter", seconds]:
            # A call by PyDLL keeps the interpreter from every other thread.
            ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))
            return "ok"
        case ["close"]:
            handler.set_closed()
            return "ok"
        case ["closed"]:
            while not handler.is_closed():
                time.sleep(0.01)
            return "True"
        case ["shutdown"]:
            return str(handler.shutdown())
    raise ValueError(words)


def main() -> None:
    where, endpoint, run_id, least, most, *config = sys.argv[1:]
    settings = dict(item.split("=", 1) for item in config)
    handler = make_handler(where, endpoint, run_id, int(least), int(most), settings)
    state: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            reply = answer(handler, state, line.split())
        except (ElasticError, KeyboardInterrupt) as error:
            reply = f"{type(error).__name__}: {error}"
        print(reply.replace("\n", " "), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
