"""One program: its process leads a session, so that signals also reach its children."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from elastic import _environment
from elastic.errors import ConfigError


class SubprocessHandler:
    """``proc`` is the running process. ``stdout`` and ``stderr`` are paths; "": inherited."""

    def __init__(
        self,
        entrypoint: str,
        args: Sequence[Any],
        env: Mapping[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: Any = None,
    ) -> None:
        if numa_options is not None:
            raise ConfigError("numa_options are not available: bind the program with numactl")
        self.local_rank_id = local_rank_id
        with ExitStack() as files:
            outputs = [
                files.enter_context(open(path, "wb")) if path else None for path in (stdout, stderr)
            ]
            self.proc: subprocess.Popen[bytes] = subprocess.Popen(
                [entrypoint, *map(str, args)],
                env=_environment.inherited() | dict(env),
                stdout=outputs[0],
                stderr=outputs[1],
                start_new_session=True,
            )

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Sends the signal to the whole process group; None: SIGTERM."""
        if self.proc.poll() is None:
            os.killpg(self.proc.pid, death_sig or signal.SIGTERM)


def get_subprocess_handler(
    entrypoint: str,
    args: Sequence[Any],
    env: Mapping[str, str],
    stdout: str | None,
    stderr: str | None,
    local_rank_id: int,
    numa_options: Any = None,
) -> SubprocessHandler:
    return SubprocessHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)
