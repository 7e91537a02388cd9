"""The scenes: each takes a Plan and returns its Findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.figures import Findings, Missing
from harness.programs import Programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The extent of the measurements."""

    programs: Programs
    repeats: int | None  # None: the scene's default
    quick: bool

    def times(self, usual: int) -> int:
        """The number of repeats: the requested one, else the scene's default."""
        return self.repeats or (3 if self.quick else usual)

    def amount(self, usual: int, quick: int) -> int:
        return quick if self.quick else usual

    def seconds(self, usual: float, quick: float) -> float:
        return quick if self.quick else usual

    def launchers(self, findings: Findings, *names: str) -> dict[str, list[str]]:
        """The command of each launcher that is there; the others are skipped in the findings."""
        commands: dict[str, list[str]] = {}
        for name in names:
            try:
                commands[name] = self.programs.launcher(name)
            except Missing as missing:
                findings.skip(name, missing)
        return commands


Scene = Callable[[Plan], Findings]


def all_scenes() -> dict[str, Scene]:
    """Every scene by name, in the order in which they run."""
    from scenes import (
        client,
        collectives,
        console_delay,
        failure_grace,
        functions,
        handlers,
        idle,
        in_place,
        kills,
        nodes,
        observer,
        output,
        plain_start,
        process_group,
        restart,
        sessions,
        snapshots,
        stalls,
        start,
        store_crowd,
        store_memory,
        store_throughput,
        succession,
        tee,
        trainers,
        wake,
        warm,
        worker_calls,
    )

    return {
        "start": start.start,
        "launcher-memory": start.launcher_memory,
        "restart": restart.restart,
        "idle": idle.idle,
        "plain-start": plain_start.plain_start,
        "collectives": collectives.collectives,
        "output": output.output,
        "tee": tee.tee,
        "console-delay": console_delay.console_delay,
        "functions": functions.functions,
        "failure-grace": failure_grace.failure_grace,
        "kills": kills.kills,
        "nodes": nodes.nodes,
        "succession": succession.succession,
        "sessions": sessions.sessions,
        "stalls": stalls.stalls,
        "observer": observer.observer,
        "handlers": handlers.handlers,
        "store-throughput": store_throughput.store_throughput,
        "store-client": client.store_client,
        "store-wake": wake.store_wake,
        "store-memory": store_memory.store_memory,
        "store-crowd": store_crowd.store_crowd,
        "process-group": process_group.process_group,
        "warm": warm.warm,
        "trainers": trainers.trainers,
        "in-place": in_place.in_place,
        "snapshots": snapshots.snapshots,
        "snapshot-save": snapshots.snapshot_save,
        "worker-calls": worker_calls.worker_calls,
    }
