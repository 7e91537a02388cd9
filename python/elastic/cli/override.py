"""``elastic-launch override``: a voter continues a job whose other voters are lost for good."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from elastic.cli import subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import ConfigError, RendezvousError

EXIT_NOT_DONE = 1

RISK = """\
The node at {voter} will run the coordinator of job {job}, without the voters that do not answer.
Do this only if their hosts are lost for good. If they are alive behind a partition of the network,
they continue as well: then two jobs run from the same checkpoint and write the same files."""


def parser() -> argparse.ArgumentParser:
    made = subcommands.Parser(
        prog=f"{PROGRAM} override",
        description="Continues a job that has lost the majority of its voters for good, so that "
        "no coordinator can be elected: one of the remaining voters runs the coordinator from "
        "now on, and the other nodes follow it. Refused if the coordinator is not lost, or if a "
        "majority of the voters answers. Needs the token of the job, if it has one "
        "(elastic-launch help high-availability).",
    )
    made.add_argument(
        "voter",
        metavar="VOTER_ADDRESS",
        help="HOST:PORT of the voter port of a remaining node, as shown in its log",
    )
    made.add_argument("--rdzv-id", "--rdzv_id", metavar="ID", required=True, help="the job")
    subcommands.add_token_file(made, "the job")
    made.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    subcommands.add_seconds(
        made, "--timeout", 15.0, help="limit for the answer, which takes two seconds"
    )
    return made


def run(arguments: Sequence[str]) -> int:
    from elastic import _C, _environment
    from elastic.rendezvous import token
    from elastic.text import split_endpoint

    options = parser().parse_args(arguments)
    host, port = split_endpoint(options.voter, "VOTER_ADDRESS")
    if not port:
        raise ConfigError(f"VOTER_ADDRESS is {options.voter!r}: expected HOST:PORT")
    secret = token.find(options.token_file, _environment.inherited())
    if not options.yes and not _is_confirmed(options.voter, options.rdzv_id):
        print(f"{PROGRAM} override: not confirmed, nothing was done", file=sys.stderr)
        return EXIT_NOT_DONE
    try:
        is_done, text = _C.override_coordinator(
            host, int(port), run_id=options.rdzv_id, timeout=options.timeout, **secret
        )
    except RendezvousError as error:
        return subcommands.report("override", error)
    print(text, file=sys.stdout if is_done else sys.stderr)
    return 0 if is_done else EXIT_NOT_DONE


def _is_confirmed(voter: str, job: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(
            "there is no terminal to ask for confirmation: read what the command risks "
            "(elastic-launch help high-availability), then add --yes"
        )
    print(RISK.format(voter=voter, job=job), file=sys.stderr)
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
