"""A client process that measures its own calls.

    store_client.py elastic|torch PORT

Reads one JSON request per line and answers each with one line:

- {"call": "get"|"add", "count": N}: N calls one after the other; p50_us and p99_us.
- {"call": "wait", "name": S, "count": N}: waits for N keys in turn; the CLOCK_MONOTONIC instants,
  in nanoseconds, at which the waits returned.
- {"call": "wake", "name": S, "count": N}: sets those keys, each once the waiter has blocked; the
  instants just before the sets, and how long a bare round trip took after a pause of that length.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

TIMEOUT_SECONDS = 60
# Pause between the waiter's report that it is about to block and the set. A wait takes microseconds
# to reach the server, so it has blocked by then.
PAUSE_SECONDS = 0.002


def connect(library: str, port: int) -> Any:
    if library == "elastic":
        import elastic

        return elastic.StoreClient("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", port, timeout=timedelta(seconds=TIMEOUT_SECONDS))


def round_trips(call: Callable[[], Any], count: int) -> dict[str, float]:
    took = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        call()
        took.append(time.perf_counter_ns() - begun)
    took.sort()
    return {"p50_us": took[count // 2] / 1e3, "p99_us": took[int(0.99 * (count - 1))] / 1e3}


def wait_in_turn(store: Any, name: str, count: int) -> list[int]:
    returned = []
    for number in range(count):
        store.set(f"{name}/ready/{number}", "1")
        store.wait([f"{name}/key/{number}"])
        returned.append(time.monotonic_ns())
    return returned


def set_in_turn(store: Any, name: str, count: int) -> dict[str, list[int]]:
    begun, trips = [], []
    for number in range(count):
        store.wait([f"{name}/ready/{number}"])
        time.sleep(PAUSE_SECONDS)
        sent = time.monotonic_ns()
        store.add(f"{name}/trips", 1)
        trips.append(time.monotonic_ns() - sent)
        time.sleep(PAUSE_SECONDS)
        begun.append(time.monotonic_ns())
        store.set(f"{name}/key/{number}", "1")
        time.sleep(PAUSE_SECONDS)  # leaves the cores to the server and the waiter
    return {"begun_ns": begun, "trips_ns": trips}


def main() -> None:
    library, port = sys.argv[1], int(sys.argv[2])
    store = connect(library, port)
    key, counter = f"present/{library}", f"counter/{library}"
    store.set(key, "0123456789abcdef" * 2)
    calls: dict[str, Callable[[], Any]] = {
        "get": lambda: store.get(key),
        "add": lambda: store.add(counter, 1),
    }
    for line in sys.stdin:
        request = json.loads(line)
        name = request["call"]
        answer: Any
        if name == "wait":
            answer = wait_in_turn(store, request["name"], request["count"])
        elif name == "wake":
            answer = set_in_turn(store, request["name"], request["count"])
        else:
            answer = round_trips(calls[name], request["count"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
