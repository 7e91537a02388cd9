"""``elastic-launch exclude`` and ``readmit``: hosts without which a running job continues."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
from collections.abc import Sequence

from elastic.cli import console, local_jobs, subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import RendezvousError
from elastic.observe import Observation

EXIT_REFUSED = 1  # the request changed nothing
# Until the job's record has it.
REPLY_TIMEOUT_S = 30.0


def parser(name: str) -> argparse.ArgumentParser:
    is_exclusion = name == "exclude"
    made = subcommands.Parser(
        prog=f"{PROGRAM} {name}",
        description=(
            "Excludes a host from a running job: for an hour, twice as long each further time and "
            "at most for a day, its nodes are in no round that has enough others, and are refused "
            "with exit code 79. "
            if is_exclusion
            else "Ends the exclusion of a host, which may join again. "
        )
        + "Needs the token of the job, if it has one; a token of its observers is not enough. "
        "Exit codes: 0 done, 1 refused and nothing changed.",
    )
    subcommands.add_job(made, is_required=True)
    made.add_argument(
        "host",
        metavar="HOST",
        help="its name, as `status` shows it, or its address, or the name of one of its nodes",
    )
    if is_exclusion:
        made.add_argument(
            "--reason", metavar="TEXT", default="", help="for messages, and for --on-exclude"
        )
    subcommands.add_seconds(made, "--timeout", 5.0, help="limit for connecting")
    return made


def run(arguments: Sequence[str], name: str = "exclude") -> int:
    made = parser(name)
    # Options may stand between JOB, which may be missing, and HOST.
    options = made.parse_intermixed_args(arguments)
    if not options.host:
        made.error("HOST is empty: give the name of a host, as `status` shows it")
    hint = ""
    local_jobs.require(options, name)
    try:
        hint = local_jobs.locate(options)
        is_done, text = _request(options, name)
    except RendezvousError as error:
        return subcommands.report(name, error, hint)
    with contextlib.suppress(BrokenPipeError):  # the exit code has the same answer
        console.show(f"{text}\n")
    return 0 if is_done else EXIT_REFUSED


def _request(options: argparse.Namespace, name: str) -> tuple[bool, str]:
    why = f"{_person()} on {os.uname().nodename}"
    if reason := getattr(options, "reason", ""):
        why += f": {reason}"
    return local_jobs.request(
        options,
        Observation.next_host_answer,
        options.timeout + REPLY_TIMEOUT_S,
        options.timeout,
        host_request=name,
        host=options.host,
        host_reason=why,
    )


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # this user has no name here
        return f"user {os.getuid()}"
