"""One program: its process leads a session, so that signals also reach its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from elastic import _environment
from elastic._host import numa


class SubprocessHandler:
    """``proc`` is the running process. ``stdout`` and ``stderr`` are paths; "": inherited.

    Without devices, ``numa_options`` bind ranks up to this one; a context has the number of ranks.
    """

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
        self.local_rank_id = local_rank_id
        variables = _environment.of_workers() | dict(env)
        cpus = numa.worker_cpus(numa_options, local_rank_id + 1, variables, sys.executable)
        with ExitStack() as files:
            files.enter_context(numa.bound(cpus[local_rank_id]))
            outputs = [
                files.enter_context(open(path, "wb")) if path else None for path in (stdout, stderr)
            ]
            self.proc: subprocess.Popen[bytes] = subprocess.Popen(
                [entrypoint, *map(str, args)],
                env=variables,
                stdout=outputs[0],
                stderr=outputs[1],
                start_new_session=True,
            )

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Sends the signal to the whole process group; None: SIGTERM."""
        if self.proc.poll() is None:
            os.killpg(self.proc.pid, death_sig or signal.SIGTERM)


get_subprocess_handler = SubprocessHandler
