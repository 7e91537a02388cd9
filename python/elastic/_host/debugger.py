"""The debugger that runs in the launcher: debugpy (VS Code) or PyCharm, which both are pydevd.

It follows child processes by replacing the functions of Python that start them. Workers are started
by native code, so their commands are passed through the debugger's own function here.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from elastic.constants import NOTICE

logger = logging.getLogger(__name__)


def follows_children() -> bool:
    """Whether a debugger runs in this process, and follows the processes that Python starts."""
    if "pydevd" not in sys.modules or "_pydev_bundle.pydev_monkey" not in sys.modules:
        return False
    # Its mark on a function that it has replaced; not with "subProcess": false.
    return hasattr(sys.modules.get("_posixsubprocess"), "original_fork_exec")


def commands(workers: Sequence[list[str]]) -> list[list[str]]:
    """The commands of the workers, with the debugger in those that are Python."""
    if not follows_children():
        return list(workers)
    monkey = sys.modules["_pydev_bundle.pydev_monkey"]
    try:
        found = [
            list(map(os.fsdecode, monkey.patch_args(list(map(os.fsdecode, words)))))
            for words in workers
        ]
        for _ in workers:
            monkey.send_process_created_message()
    except (AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        logger.warning(
            "the debugger of this process cannot follow the workers (%s: %s): start each one with "
            "-m debugpy --listen",
            type(error).__name__,
            error,
        )
        return list(workers)
    logger.log(NOTICE, "the debugger of this process follows the workers")
    return found
