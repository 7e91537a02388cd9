"""The workers' program: which command is executed, and whether it is executable."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Mapping

from elastic._unnamed_file import unnamed_file
from elastic.cli.command_line import CommandLine
from elastic.cli.options import PROGRAM
from elastic.errors import ConfigError
from elastic.text import substitutes

STDIN = "-"  # as a script: read from standard input, as in Python
READ_BYTES = 1 << 20
# Runs a file as ``python -`` runs standard input: modules are found in the current directory.
RUN_AS_STDIN = (
    "import sys; sys.argv[0] = '-'; "
    "exec(compile(open(sys.argv.pop(1), 'rb').read(), '<stdin>', 'exec'))"
)


def command(line: CommandLine, interpreter: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    program = line.program
    if not program:
        raise ConfigError("the name of the script, module or program is empty")
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
    start = (interpreter, "-u")
    if line.switch("module") and not is_script:
        return (*start, "-m", program, *line.arguments)
    if program == STDIN:
        # Every worker and every round reads all of it. The name is valid while the launcher runs.
        if line.switch("dry-run"):
            return (*start, program, *line.arguments)
        return (*start, "-c", RUN_AS_STDIN, _from_stdin(), *line.arguments)
    if not substitutes(program):
        _check_exists(program, "script")
        if os.path.isdir(program) and not os.path.exists(os.path.join(program, "__main__.py")):
            raise ConfigError(f"the script {program} is a directory without __main__.py")
        if not os.access(program, os.R_OK):
            raise ConfigError(f"the script {program} may not be read")
        line.warnings.extend(_other_language(program))
    return (*start, program, *line.arguments)


def auto_progress(line: CommandLine) -> bool | None:
    """As the setting of this name of the agent."""
    is_asked = line.switch("auto-progress")
    if line.switch("no-auto-progress"):
        if is_asked:
            raise ConfigError(
                f"{line.origin('auto-progress')} and {line.origin('no-auto-progress')} exclude "
                "each other"
            )
        return False
    if line.switch("no-python") and not line.switch("run-path"):
        return False
    return True if is_asked else None


@functools.cache  # standard input is read once, also if the options are resolved again
def _from_stdin() -> str:
    """The path of a file in memory with the script that standard input has."""
    script = unnamed_file("elastic-stdin")
    source = sys.stdin.fileno() if sys.stdin is not None else 0
    try:
        while block := os.read(source, READ_BYTES):
            while block:
                block = block[os.write(script, block) :]
    except OSError as error:
        raise ConfigError(
            f"cannot read the script from standard input: {error.strerror}"
        ) from error
    return f"/proc/{os.getpid()}/fd/{script}"


def _hint(program: str) -> str:
    """What was probably meant by a script that does not exist."""
    if re.fullmatch(r"python[\d.]*", os.path.basename(program)):
        return f": {PROGRAM} starts the interpreter itself, so leave out {program}"
    if program.isalpha():
        import difflib

        from elastic.cli.subcommands import SUBCOMMANDS

        near = difflib.get_close_matches(program, [one.name for one in SUBCOMMANDS], 1, 0.7)
        if near:
            return f"; did you mean the subcommand {near[0]}?"
    return ""


def _other_language(program: str) -> list[str]:
    """A warning about a file that is a script of a shell."""
    if not os.path.isfile(program):
        return []
    with open(program, "rb") as file:
        first = file.readline(200)
    found = re.match(rb"#!\s*(\S*/(?:env\s+)?(?:ba|da|z|k)?sh)\s*$", first)
    if found is None:
        return []
    return [
        f"{program} begins with #!{os.fsdecode(found[1])}, but is given to Python: add --no-python "
        "if it is a script of a shell"
    ]


def _check_exists(path: str, what: str) -> None:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = _hint(path) if what == "script" else ""
        raise ConfigError(f"the {what} {path} does not exist{hint}") from error
    except OSError as error:  # for example a directory of its path may not be searched
        raise ConfigError(f"the {what} {path} cannot be reached: {error.strerror}") from error


def _check_executable(program: str, environ: Mapping[str, str], what: str) -> None:
    if substitutes(program):
        return
    if os.sep not in program:
        import shutil

        if shutil.which(program, path=environ.get("PATH")) is None:
            raise ConfigError(f"the {what} {program} is not in PATH")
        return
    _check_exists(program, what)
    if os.path.isdir(program):
        raise ConfigError(f"the {what} {program} is a directory")
    if not os.access(program, os.X_OK):
        raise ConfigError(f"the {what} {program} is not executable")
