"""The environment of this process, for programs that use the Python interface.

The command line reads its variables in ``elastic.cli.resolve``, from a mapping.
"""

from __future__ import annotations

import os


def inherited() -> dict[str, str]:
    """A copy of all variables."""
    return dict(os.environ)


def of_workers() -> dict[str, str]:
    """The variables that workers inherit: not the job's token, which is the launcher's."""
    return {name: text for name, text in os.environ.items() if name != "ELASTIC_TOKEN"}


def of_ranks() -> dict[str, str]:
    """As ``of_workers()``, with the default that torch's agent adds."""
    environment = of_workers()
    if "NCCL_ASYNC_ERROR_HANDLING" not in environment:
        environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return environment


def get(name: str, default: str = "") -> str:
    return os.environ.get(name, default)


def update(variables: dict[str, str]) -> None:
    os.environ.update(variables)
