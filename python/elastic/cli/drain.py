"""``elastic-launch drain``: stops all ranks of a running job, or of one node, at one step."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from elastic.cli import console, local_jobs, subcommands
from elastic.cli.options import PROGRAM
from elastic.constants import DEFAULT_DRAIN_TIMEOUT_S
from elastic.errors import RendezvousError
from elastic.observe import Observation
from elastic.text import duration

EXIT_REFUSED = 1  # the request changed nothing
EXIT_STOPPED = 3  # no step was agreed by the deadline, and the job was stopped
STOPPED = "stopped without an agreed step"  # how the coordinator reports that
_EXIT_INTERRUPTED = 128 + signal.SIGINT
# The coordinator replies at the deadline at the latest.
REPLY_MARGIN_S = 10.0


def parser() -> argparse.ArgumentParser:
    made = subcommands.Parser(
        prog=f"{PROGRAM} drain",
        description="Stops all ranks of a running job at one step: should_stop() of "
        "elastic.worker returns True there, the ranks save their state and exit, and the job ends "
        "with exit code 80. Returns when the step is agreed. Needs the token of the job, if it "
        "has one; a token of its observers is not enough. Exit codes: 0 agreed, 1 refused and "
        "nothing changed, 3 the job was stopped without an agreed step.",
    )
    subcommands.add_job(made, is_required=True)
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
        help="after this time the workers are stopped without an agreed step; with --node the job "
        "continues unchanged",
    )
    subcommands.add_seconds(made, "--timeout", 5.0, help="limit for connecting")
    return made


def run(arguments: Sequence[str]) -> int:
    made = parser()
    options = made.parse_args(arguments)
    if options.node == "":
        made.error("--node is empty: give the name of a node or host, as `status` shows it")
    hint = ""
    local_jobs.require(options, "drain")
    try:
        hint = local_jobs.locate(options)
        _warn_without_steps(options)
        with _interruptible():
            is_agreed, text = _request(options)
    except RendezvousError as error:
        return subcommands.report("drain", error, hint)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    with contextlib.suppress(BrokenPipeError):  # the exit code has the same answer
        console.show(f"{text}\n")
    if is_agreed:
        return 0
    return EXIT_STOPPED if text.startswith(STOPPED) else EXIT_REFUSED


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt; by the launcher's default it ends the process silently."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def _warn_without_steps(options: argparse.Namespace) -> None:
    """Before the request: a job whose ranks report no step cannot agree on one."""
    with local_jobs.connect(options, workers=False, timeout=options.timeout) as job:
        snapshot = job.next(options.timeout)
    if snapshot is None or snapshot["result"] is not None or snapshot["progress"] is not None:
        return
    then = (
        "the job continues unchanged"
        if options.node
        else "the job is stopped without an agreed step"
    )
    _report(
        f"warning: no rank has reported a step: if should_stop() of elastic.worker is not called "
        f"within {duration(options.deadline)}, {then}"
    )


def _report(text: str) -> None:
    print(f"{PROGRAM} drain: {text}", file=sys.stderr, flush=True)


def _request(options: argparse.Namespace) -> tuple[bool, str]:
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + options.deadline))
    was_sent = False

    def read(job: Observation, left: float) -> tuple[bool, str] | None:
        nonlocal was_sent
        answer = job.next_drain(left)
        was_sent = True  # with the first state
        return answer

    try:
        return local_jobs.request(
            options,
            read,
            options.timeout + options.deadline + REPLY_MARGIN_S,
            options.timeout,
            drain=options.deadline,
            drain_reason=f"{PROGRAM} drain on {os.uname().nodename}",
            drain_node=options.node or "",
        )
    except KeyboardInterrupt:
        if was_sent:
            _report(f"interrupted; the request stays in force until {until}")
        raise
