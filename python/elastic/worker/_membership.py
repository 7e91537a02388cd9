"""A process that takes part in several rounds of the job (``--on-membership-change=inplace``)."""

from __future__ import annotations

import dataclasses
import math
import os

from elastic import _environment
from elastic.worker._channel import calls


@dataclasses.dataclass(frozen=True)
class Round:
    """The round, from the launcher's variables. ``reason``: why it follows the round before."""

    round: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    master_addr: str
    master_port: int
    reason: str


class _Sockets:
    def __init__(self, port: int) -> None:
        self._port = port

    def __enter__(self) -> None:
        calls.begin_sockets()

    def __exit__(self, *_: object) -> None:
        calls.end_sockets(self._port)


class Membership:
    """This process as a member of the job. Made by :func:`membership`."""

    def __init__(self) -> None:
        self._is_wanted = _environment.get("ELASTIC_ON_MEMBERSHIP_CHANGE") == "inplace"
        self._is_kept = False
        is_prepared = _environment.get("ELASTIC_AWAITS_ROUND") == "1"
        self._awaits_round = self._is_wanted and calls.join_membership() and is_prepared

    @property
    def supported(self) -> bool:
        """Whether this process can take part in another round.

        False under another launcher, in a process that the worker has started, and if the job
        restarts its workers on changes. Then the other calls have no effect.
        """
        return self._is_wanted and calls.join_membership()

    @property
    def round(self) -> int:
        """The number of the round in which this process takes part, from 0."""
        return calls.round()

    @property
    def kept(self) -> bool:
        """Whether this process has taken part in an earlier round."""
        return self._is_kept

    @property
    def awaits_round(self) -> bool:
        """Whether this process was started before its first round (``--inplace-prepare``).

        It has no rank: call ``next_round()`` when everything is done that needs none. False from
        then on.
        """
        return self._awaits_round

    def is_over(self) -> bool:
        """Whether the round is over. Makes no system call: call it between steps."""
        return calls.round_is_over()

    def wait_until_over(self, seconds: float) -> bool:
        """Waits until the round is over, at most ``seconds`` and one second; whether it is.

        For a thread that ends operations which are not on sockets.
        """
        return calls.wait_until_over(seconds)

    def sockets(self, port: int = 0) -> _Sockets:
        """A context in which the process group is formed.

        The TCP connections that are made in it belong to the round. When the round is over they are
        shut down, so that a blocked collective raises an error at once. With ``port``, after the
        context only those to this port of the peer are: for a library whose operations are aborted
        otherwise.
        """
        return _Sockets(port)

    def leave(self) -> None:
        """Reports that this process has left the round: no other rank must wait for it."""
        calls.leave_round()

    def next_round(self, timeout: float | None = None) -> Round:
        """Leaves the round, waits for the next one, and puts its variables into the environment.

        Raises ``TimeoutError`` after ``timeout`` seconds, and ``RuntimeError`` if no round can
        follow: the launcher has ended, or this process is not ``supported``.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"the timeout is {timeout!r}: expected 0 or more seconds")
        if not self.supported:
            raise RuntimeError(
                "there is no next round: the launcher does not keep this process when members "
                "change (--on-membership-change=inplace)"
            )
        is_endless = timeout is None or math.isinf(timeout)
        variables = calls.wait_for_round(-1.0 if timeout is None or is_endless else timeout)
        if variables is None:
            raise TimeoutError(f"the next round has not begun within {timeout} s")
        items = (item.partition(b"=") for item in variables.split(b"\0") if item)
        _environment.update({os.fsdecode(name): os.fsdecode(text) for name, _, text in items})
        self._is_kept = not self._awaits_round
        self._awaits_round = False
        return current_round()


def current_round() -> Round:
    """The round that the variables of this process describe."""

    def number(name: str, default: int) -> int:
        return int(_environment.get(name) or default)

    return Round(
        round=calls.round(),
        rank=number("RANK", 0),
        world_size=number("WORLD_SIZE", 1),
        local_rank=number("LOCAL_RANK", 0),
        local_world_size=number("LOCAL_WORLD_SIZE", 1),
        group_rank=number("GROUP_RANK", 0),
        master_addr=_environment.get("MASTER_ADDR"),
        master_port=number("MASTER_PORT", 0),
        reason=_environment.get("ELASTIC_MEMBERSHIP_CHANGE"),
    )


_objects: dict[str, Membership] = {}


def membership() -> Membership:
    """The membership of this process; always the same object.

    The first call declares that this process can take part in several rounds, and starts a thread
    that receives their ends, if the launcher keeps processes when members change.
    """
    found = _objects.get("")
    return found if found is not None else _objects.setdefault("", Membership())
