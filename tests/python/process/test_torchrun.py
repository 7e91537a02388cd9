"""elastic in the place of torch's launcher, for programs that import or execute that one."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from elastic.cli.main import main

from support.launching import run_program


def test_a_shim_runs_the_launcher_and_replaces_only_a_shim(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "it's here"
    assert main(["install-shim", str(directory)]) == main(["install-shim", str(directory)]) == 0
    assert f"export PATH={shlex.quote(str(directory))}:" in capfd.readouterr().out
    shim = directory / "torchrun"
    done = run_program([shim, "--version"], check=True)
    assert done.stdout.startswith("elastic-launch "), done.stderr
    assert run_program([shim, "no-such.py"]).returncode == 2
    theirs = tmp_path / "torchrun"
    theirs.write_text("#!/bin/sh\n")
    assert main(["install-shim", str(tmp_path)]) == 2
    (linked := tmp_path / "linked").mkdir()
    (linked / "torchrun").symlink_to(shim)
    assert main(["install-shim", str(linked)]) == 2
    assert main(["install-shim", str(theirs)]) == 2
    assert capfd.readouterr().err.count("torchrun") >= 3
    assert theirs.read_text() == "#!/bin/sh\n"


def test_the_completion_is_that_of_the_shims_name(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    assert main(["install-shim", str(tmp_path)]) == 0
    done = run_program([tmp_path / "torchrun", "--print-completion=bash"], check=True)
    assert done.stdout.splitlines()[-1].endswith(" torchrun")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "usage:"),
        (["-m", "x"], 2, "usage:"),
        (["--help"], 0, "usage:"),
        (["no_such_module"], 2, "no module or installed command 'no_such_module'"),
        (["no_such_package.module"], 2, "no module or installed command"),
        (["torch.distributed.run", "--version"], 0, "elastic-launch "),
    ],
)
def test_the_module_that_runs_other_launchers(words: list[str], code: int, text: str) -> None:
    command = [sys.executable, "-m", "elastic.torchrun", *words]
    done = run_program(command)
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
