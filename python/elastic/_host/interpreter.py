"""Questions to torch, answered by a short program in the workers' interpreter.

The launcher never imports torch itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from elastic.errors import ConfigError

DEADLINE_S = 120.0  # importing torch from a cold network disk takes more than a minute

# The program is killed when the launcher dies.
_PREFIX = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
"""


def ask(
    program: str, arguments: list[str], interpreter: str, environ: Mapping[str, str], why: str
) -> str:
    """The last line that the program prints. ``why`` begins the message of a ConfigError."""
    command = [interpreter, "-c", _PREFIX + program, str(os.getpid()), *arguments]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"{why}: {interpreter} did not list the devices within {DEADLINE_S:g} s; give a number"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{why}: cannot run {interpreter} to list the devices: {error.strerror}"
        ) from error
    if done.returncode != 0:
        text = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ConfigError(f"{why}: torch could not list the devices: {text}")
    return (done.stdout.strip().splitlines() or [""])[-1]
