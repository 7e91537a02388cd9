"""Times calls of elastic.worker; prints nanoseconds per call, with the loop subtracted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import repeat

from elastic import _worker, worker


def per_call(call: Callable[[int], object], count: int) -> float:
    begin = time.perf_counter_ns()
    for step in repeat(1_000_000, count):
        call(step)
    return (time.perf_counter_ns() - begin) / count


def main() -> None:
    count = int(sys.argv[1])
    calls = {"nothing": _worker.nothing, "progress": worker.progress, "stop": worker.should_stop}
    times = {name: min(per_call(call, count) for _ in range(5)) for name, call in calls.items()}
    print(json.dumps(times | {"has_channel": _worker.open()}))


if __name__ == "__main__":
    main()
