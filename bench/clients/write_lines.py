"""Writes lines to stderr at a fixed rate and prints how long the writes took, as one JSON object.

Usage: write_lines.py COUNT LINES_PER_SECOND
"""

from __future__ import annotations

import json
import os
import sys
import time

LINE = b"x" * 79 + b"\n"


def main() -> None:
    count, rate = int(sys.argv[1]), float(sys.argv[2])
    taken = []
    begin = time.perf_counter()
    for i in range(count):
        time.sleep(max(0.0, begin + i / rate - time.perf_counter()))
        before = time.perf_counter()
        os.write(2, LINE)
        taken.append(time.perf_counter() - before)
    taken.sort()
    result = {"p50_us": 1e6 * taken[count // 2], "p99_us": 1e6 * taken[count * 99 // 100]}
    os.write(1, json.dumps(result).encode())


if __name__ == "__main__":
    main()
