"""The options ``--warm`` and ``--preload``."""

from __future__ import annotations

from elastic.cli.command_line import CommandLine
from elastic.cli.config import NodeConfig
from elastic.cli.entrypoint import STDIN
from elastic.multiprocessing import warm


def template(line: CommandLine, program: tuple[str, ...], node: NodeConfig) -> tuple[str, ...]:
    """The command of the process that forks the workers; (): the options have no effect."""
    modules = line.text("preload")
    warm.check_modules(modules, line.origin("preload"))
    origin = line.origin("warm" if line.switch("warm") else "preload")
    if line.switch("no-python") and not line.switch("run-path"):
        line.warnings.append(f"{origin} has no effect: the workers do not run in Python")
        return ()
    if line.program == STDIN:
        line.warnings.append(f"{origin} has no effect: the script is read from standard input")
        return ()
    if node.rendezvous is not None and node.rendezvous.is_handler:
        line.warnings.append(f"{origin} has no effect with a third-party rendezvous handler")
        return ()
    return warm.template(program[:2], modules, program[2:])
