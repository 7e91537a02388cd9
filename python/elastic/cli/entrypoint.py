"""The workers' program: which command is executed, and whether it is executable."""

from __future__ import annotations

import os
from collections.abc import Mapping

from elastic.cli.command_line import CommandLine
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
        _check_executable(program, environ, "program")
        return (program, *line.arguments)
    _check_executable(interpreter, environ, "interpreter (PYTHON_EXEC)")
    if line.switch("module") and not is_script:
        return (interpreter, "-u", "-m", program, *line.arguments)
    if not substitutes(program):
        if not os.path.exists(program):
            raise ConfigError(f"the script {program} does not exist")
        if os.path.isdir(program) and not os.path.exists(os.path.join(program, "__main__.py")):
            raise ConfigError(f"the script {program} is a directory without __main__.py")
        if not os.access(program, os.R_OK):
            raise ConfigError(f"the script {program} may not be read")
    return (interpreter, "-u", program, *line.arguments)


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
