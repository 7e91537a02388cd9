"""Follows the job of a coordinator until standard input is closed.

Usage: observe.py PORT

Prints a line when the first snapshot has arrived.
"""

from __future__ import annotations

import select
import sys

from elastic import observe


def main() -> None:
    with observe.connect(f"127.0.0.1:{sys.argv[1]}") as job:
        job.next(60)
        print("following", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            job.next(0.2)


if __name__ == "__main__":
    main()
