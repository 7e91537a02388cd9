"""The jobs of this host: which of them a subcommand names, and their list."""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from elastic import _environment, _local_jobs, observe
from elastic.cli import status_view
from elastic.cli.options import PROGRAM
from elastic.constants import COORDINATOR_PORT
from elastic.errors import ConfigError, RendezvousClosed, RendezvousUnavailable
from elastic.observe import LocalJob, Observation
from elastic.text import duration, endpoints_in, is_number, join_endpoints

Answer = TypeVar("Answer")

NO_JOB = "no job of this user runs on this host: give HOST:PORT of the job's coordinator"
ERROR_MAX = 24  # characters of an error in the list
UNREACHABLE = "unreachable"  # of a job whose error is shown below the list
MOVED = (
    "; if the job runs, its coordinator may have moved: name the job by its run id on one of its "
    "hosts, or give the address that the log of a node shows"
)
HEADER = ("JOB", "NODES", "WORKERS", "ROUND", "STATE", "SINCE", "PID")


def locate(options: argparse.Namespace) -> str:
    """Replaces the id or pid of a job of this host in the options by its endpoint.

    An endpoint stays. Returns what to add to the error if it cannot be reached. Raises
    RendezvousClosed if there is no such job and no such host, or if there are several jobs.
    """
    wanted: str = options.endpoint or options.rdzv_id
    if {":", ","} & set(options.endpoint):
        return _add_moved(options)
    jobs = observe.local_jobs()
    if options.endpoint and options.rdzv_id not in ("", options.endpoint):
        is_job = any(job.run_id == options.endpoint for job in jobs)
        return f"; {options.endpoint} is a job of this host: leave out --rdzv-id" if is_job else ""
    found = [job for job in jobs if not wanted or job.run_id == wanted]
    if not found and is_number(wanted):
        found = [job for job in jobs if int(wanted) in job.pids]
    if len(found) == 1:
        options.endpoint, options.rdzv_id = found[0].endpoint, found[0].run_id
        return ""
    if not wanted and (own := _of_allocation(found)):
        options.endpoint, options.rdzv_id = own.endpoint, own.run_id
        return ""
    if found:
        raise RendezvousClosed(
            f"this host has several jobs: choose one by name or pid; {_names(found)}"
        )
    is_host = bool(options.endpoint) and not is_number(wanted)
    if is_host and _resolves(wanted):
        return f"; {wanted} is taken for a host: no job {wanted} runs here, {_names(jobs)}"
    if wanted:
        also = f", and {wanted} is not a host name" if is_host else ""
        raise RendezvousClosed(
            f"no job {wanted} of this user runs on this host{also}; {_names(jobs)}"
        )
    raise RendezvousClosed(NO_JOB)


def _add_moved(options: argparse.Namespace) -> str:
    """Puts the address to which a coordinator has moved before its former one, if it is known here.

    The host of the former one may have left the job, so that nothing listens there any more.
    Returns what to add to the error if neither can be reached.
    """
    given = options.endpoint
    if given.startswith(_local_jobs.UNIX) or observe.STORE in given:
        return ""
    known = endpoints_in(given.split(","), COORDINATOR_PORT)
    moved = {
        (agent.run_id, agent.moved_to)
        for agent in observe.agents()
        if agent.moved_to
        and options.rdzv_id in ("", agent.run_id)
        and not known.keys().isdisjoint(endpoints_in(agent.endpoint.split(","), COORDINATOR_PORT))
    }
    if len({run_id for run_id, _ in moved}) != 1:
        return MOVED
    options.rdzv_id = next(iter(moved))[0]
    addresses = [*sorted(address for _, address in moved), *given.split(",")]
    found = endpoints_in(addresses, COORDINATOR_PORT)
    options.endpoint = join_endpoints(list(found))
    return ""


def _of_allocation(jobs: Sequence[LocalJob]) -> LocalJob | None:
    """Inside a Slurm job: the only one of the jobs whose run id ``auto`` has made from its id."""
    slurm = _environment.get("SLURM_JOB_ID")
    own = [job for job in jobs if slurm and job.run_id.partition(".")[0] == slurm]
    return own[0] if len(own) == 1 else None


def require(options: argparse.Namespace, command: str) -> None:
    """Refuses a command that changes a job, and does not name it."""
    if not (options.endpoint or options.rdzv_id):
        raise ConfigError(
            f"{PROGRAM} {command} changes a job, so name it: give JOB; "
            f"on this host {_names(observe.local_jobs())}"
        )


def locate_again(options: argparse.Namespace, snapshot: Mapping[str, Any]) -> None:
    """Sets the endpoint at which the job of a lost coordinator is looked for, as a list.

    First where the agents of this host find it now, then where it was, then its voters, one of
    which runs the next coordinator. The address of a store and a socket stay.
    """
    given = options.endpoint
    if given.startswith(_local_jobs.UNIX) or observe.STORE in given:
        return
    options.rdzv_id = snapshot["job"]
    last = snapshot["coordinator"]
    known = endpoints_in([last["address"] or "", *given.split(",")], COORDINATOR_PORT)
    agents = observe.agents_endpoints(options.rdzv_id, {port for _, port in known})
    addresses = [*agents, last["address"] or "", *last["voters"], *given.split(",")]
    found = endpoints_in(addresses, COORDINATOR_PORT)
    options.endpoint = join_endpoints([one for one in found if one[1]]) or given


def connect(options: argparse.Namespace, **more: Any) -> observe.Observation:
    """Begins to connect to the job of the options. ``more``: as for ``observe.connect``."""
    return observe.connect(options.endpoint, options.rdzv_id, token_file=options.token_file, **more)


def request(
    options: argparse.Namespace,
    read: Callable[[Observation, float], Answer | None],
    limit: float,
    timeout: float,
    **more: Any,
) -> Answer:
    """The answer to a request to the job of the options.

    ``read``: waits for it at most so long; None: something else has arrived, or nothing.
    ``timeout``: of the connection; ``limit``: of all. ``more``: the request, as for
    ``observe.connect``.
    """
    end = time.monotonic() + limit
    with connect(options, workers=False, timeout=timeout, **more) as job:
        while (left := end - time.monotonic()) > 0:
            if (answer := read(job, left)) is not None:
                return answer
    raise RendezvousUnavailable(f"{options.endpoint} sent no answer within {duration(limit)}")


def _names(jobs: Sequence[LocalJob]) -> str:
    named = [f"{one.run_id or '?'} (pid {_pids(one)})" for one in jobs]
    return f"its jobs are {', '.join(named)}" if named else "it has no jobs"


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True


def _pids(job: LocalJob) -> str:
    return " ".join(map(str, job.pids))


def rows(jobs: Sequence[LocalJob]) -> list[tuple[str, ...]]:
    """The table of the jobs, with its header."""
    return [HEADER, *map(_row, jobs)]


def problems(jobs: Sequence[LocalJob]) -> list[str]:
    """A line for each job that the table shows as unreachable."""
    return [
        f"{one.run_id or '?'} (pid {_pids(one)}): {one.error}"
        for one in jobs
        if _short_error(one) == UNREACHABLE
    ]


def _short_error(job: LocalJob) -> str:
    return job.error if len(job.error) <= ERROR_MAX else UNREACHABLE


def _row(job: LocalJob) -> tuple[str, ...]:
    seen = job.snapshot
    if seen is None:
        return job.run_id or "?", "-", "-", "-", _short_error(job), "-", _pids(job)
    began = seen["began"]
    return (
        seen["job"],
        str(seen["nodes_in_round"]),
        str(seen["world_size"]),
        "-" if seen["round"] is None else str(seen["round"]),
        status_view.state_of(seen)[0],
        "-" if began is None else _since(began),
        _pids(job),
    )


def _since(at: float) -> str:
    """The time of day, with the date of another day."""
    then = time.localtime(at)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M", then)
