"""The workers' program: which command is executed, and whether it is executable."""

from __future__ import annotations

import os
from collections.abc import Mapping

from elastic.cli.command_line import CommandLine
from elastic.cli.config import NodeConfig
from elastic.errors import ConfigError
from elastic.text import substitutes


def command(line: CommandLine, interpreter: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    program = line.program
    is_script = line.switch("run-path")
    if line.switch("no-python") and not is_script:
        if line.switch("module"):
            raise ConfigError(
                f"{line.origin('module')} and {line.origin('no-python')} exclude each other"
            )
        if line.switch("auto-progress"):
            raise ConfigError(
                f"{line.origin('auto-progress')} and {line.origin('no-python')} exclude each other"
            )
        _check_executable(program, environ, "program")
        return (program, *line.arguments)
    _check_executable(interpreter, environ, "interpreter (PYTHON_EXEC)")
    start: tuple[str, ...] = (interpreter, "-u")
    if line.switch("auto-progress"):
        start = (interpreter, "-u", "-m", "elastic.worker.auto")
    if line.switch("module") and not is_script:
        return (*start, "-m", program, *line.arguments)
    if not substitutes(program):
        if not os.path.exists(program):
            raise ConfigError(f"the script {program} does not exist")
        if os.path.isdir(program) and not os.path.exists(os.path.join(program, "__main__.py")):
            raise ConfigError(f"the script {program} is a directory without __main__.py")
        if not os.access(program, os.R_OK):
            raise ConfigError(f"the script {program} may not be read")
    return (*start, program, *line.arguments)


def warm_template(line: CommandLine, program: tuple[str, ...], node: NodeConfig) -> tuple[str, ...]:
    """The command of the process that forks the workers; (): ``--warm`` was not given."""
    if not line.switch("warm") and "preload" not in line.values:
        return ()
    modules = line.text("preload")
    from elastic.multiprocessing import warm

    warm.check_modules(modules, line.origin("preload"))
    origin = line.origin("warm" if line.switch("warm") else "preload")
    if line.switch("no-python") and not line.switch("run-path"):
        line.warnings.append(f"{origin} has no effect: the workers do not run in Python")
        return ()
    if node.rendezvous is not None and node.rendezvous.is_handler():
        line.warnings.append(
            f"{origin} has no effect with the rendezvous handler of another distribution"
        )
        return ()
    return warm.template(program[:2], modules, program[2:])


def _check_executable(program: str, environ: Mapping[str, str], what: str) -> None:
    if substitutes(program):
        return
    if os.sep not in program:
        import shutil

        if shutil.which(program, path=environ.get("PATH")) is None:
            raise ConfigError(f"the {what} {program} is not in PATH")
        return
    if not os.path.exists(program):
        raise ConfigError(f"the {what} {program} does not exist")
    if os.path.isdir(program):
        raise ConfigError(f"the {what} {program} is a directory")
    if not os.access(program, os.X_OK):
        raise ConfigError(f"the {what} {program} is not executable")
