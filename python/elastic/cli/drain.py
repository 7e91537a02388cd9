"""``elastic-launch drain``: stops all ranks of a running job, or of one node, at one step."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Sequence

from elastic import observe
from elastic.cli import console, local_jobs, subcommands
from elastic.cli.options import PROGRAM
from elastic.constants import DEFAULT_DRAIN_TIMEOUT_S
from elastic.errors import RendezvousError, RendezvousUnavailable
from elastic.text import duration

EXIT_NOT_AGREED = 1
# The coordinator replies at the deadline at the latest.
REPLY_MARGIN_S = 10.0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"{PROGRAM} drain",
        description="Stops all ranks of a running job at one step: should_stop() of "
        "elastic.worker returns True there, the ranks save their state and exit, and the job ends "
        "with exit code 80. Returns when the step is agreed. Needs the token of the job, if it "
        "has one; a token of its observers is not enough.",
    )
    subcommands.add_job(made)
    made.add_argument(
        "--node",
        metavar="NODE",
        help="only this node, or the nodes of this host, leave at the step; the others continue "
        "with their workers (--on-membership-change=inplace). Returns when every rank has reached "
        "the step",
    )
    subcommands.add_seconds(
        made,
        "--deadline",
        DEFAULT_DRAIN_TIMEOUT_S,
        help="after this time the workers are stopped without an agreed step (default 60); with "
        "--node the job continues unchanged",
    )
    subcommands.add_seconds(
        made,
        "--timeout",
        5.0,
        help="limit for connecting (default 5)",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.node == "":
        made.error("--node is empty: give the name of a node or host, as `status` shows it")
    hint = ""
    try:
        hint = local_jobs.locate(options)
        is_agreed, text = _request(options)
    except RendezvousError as error:
        return subcommands.report("drain", error, hint)
    with contextlib.suppress(BrokenPipeError):  # the exit code says it, too
        console.show(f"{text}\n")
    return 0 if is_agreed else EXIT_NOT_AGREED


def _request(options: argparse.Namespace) -> tuple[bool, str]:
    limit = options.timeout + options.deadline + REPLY_MARGIN_S
    end = time.monotonic() + limit
    with observe.connect(
        options.endpoint,
        options.rdzv_id,
        workers=False,
        drain=options.deadline,
        drain_reason=f"{PROGRAM} drain on {os.uname().nodename}",
        drain_node=options.node or "",
        timeout=options.timeout,
        token_file=options.token_file,
    ) as job:
        while (left := end - time.monotonic()) > 0:
            answer = job.next_drain(left)
            if answer is not None:
                return answer
    raise RendezvousUnavailable(f"{options.endpoint} sent no answer within {duration(limit)}")
