"""``elastic-launch stacks``: prints where the workers of a running job are."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from elastic.cli import console, local_jobs, subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import RendezvousError
from elastic.observe import Observation


def parser() -> argparse.ArgumentParser:
    made = subcommands.Parser(
        prog=f"{PROGRAM} stacks",
        description="Prints where the workers of a running job are: ranks at the same place "
        "together, with the Python stack of one of them. No worker is stopped.",
    )
    subcommands.add_job(made)
    subcommands.add_seconds(made, "--timeout", 5.0, help="limit for connecting and for the answer")
    return made


PYTHON_FRAME = '  File "'  # in the stack of a worker
NO_PYTHON = (
    "no Python stacks: import elastic.worker in the script (--no-auto-progress, or a program that "
    "does not start Python itself); "
    "for this one try: py-spy dump --pid PID (elastic-launch status shows the pids)"
)


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    hint = ""
    try:
        hint = local_jobs.locate(options)
        text = fetch(options, options.timeout)
        console.show(f"{text}\n")
        if PYTHON_FRAME not in text:
            print(f"{PROGRAM} stacks: {NO_PYTHON}", file=sys.stderr)
        return 0
    except RendezvousError as error:
        return subcommands.report("stacks", error, hint)


def fetch(job: argparse.Namespace, timeout: float) -> str:
    """The screen with the stacks of a job, which ``subcommands.add_job`` describes."""

    def read(observation: Observation, left: float) -> str | None:
        return observation.next_stacks(left) or None

    return local_jobs.request(job, read, timeout, timeout, stacks=True)
