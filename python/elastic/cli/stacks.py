"""``elastic-launch stacks``: prints where the workers of a running job are."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from elastic import observe
from elastic.cli import local_jobs, subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import RendezvousError, RendezvousUnavailable
from elastic.text import duration


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"{PROGRAM} stacks",
        description="Prints where the workers of a running job are: ranks at the same place "
        "together, with the Python stack of one of them. No worker is stopped.",
    )
    subcommands.add_job(made)
    made.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=5.0,
        help="limit for connecting and for the answer (default 5)",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    hint = ""
    try:
        hint = local_jobs.locate(options)
        print(_request(options))
        return 0
    except RendezvousError as error:
        return subcommands.report("stacks", error, hint)


def _request(options: argparse.Namespace) -> str:
    deadline = time.monotonic() + options.timeout
    with observe.connect(
        options.endpoint,
        options.rdzv_id,
        workers=False,
        stacks=True,
        timeout=options.timeout,
        token_file=options.token_file,
    ) as job:
        while (left := deadline - time.monotonic()) > 0:
            text = job.next_stacks(left)
            if text:
                return text
    raise RendezvousUnavailable(
        f"{options.endpoint} sent no stacks within {duration(options.timeout)}"
    )
