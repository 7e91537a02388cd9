"""No process leaves a file in the temporary directory, whichever of them is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from elastic import StoreServer

from support.launching import DEADLINE_S, clean_environment, launcher_command, started
from support.plug_ins import options, plug_in

SCRIPT = """
import os, signal
os.write(1, b"%d\\n" % os.getppid())
signal.pause()
"""

PROGRAM = """
import os, signal
from elastic.launcher import LaunchConfig, elastic_launch

def wait(values):
    os.write(1, b"%d\\n" % os.getppid())
    signal.pause()

if __name__ == "__main__":
    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
    elastic_launch(config, wait)(list(range(100_000)))
"""

JOBS = {
    "script": launcher_command("--nproc-per-node=2"),
    "teed": launcher_command("--nproc-per-node=2", "--tee=2", "--log-max-bytes=1M"),
    "function": [sys.executable],
    "handler": launcher_command(),  # with a rendezvous handler of a plug-in
}
END = {"agent": -signal.SIGKILL, "guardian": 71}


@pytest.mark.parametrize("killed", ["agent", "guardian"])
@pytest.mark.parametrize("job", JOBS)
def test_a_killed_process_leaves_no_file(tmp_path: Path, job: str, killed: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM if job == "function" else SCRIPT)
    folder = tmp_path / "temporary"
    folder.mkdir()
    environ = clean_environment(TMPDIR=str(folder), TORCHELASTIC_ENABLE_FILE_TIMER="1")
    words = JOBS[job]
    server = StoreServer("127.0.0.1", 0)
    if job == "handler":
        environ["PYTHONPATH"] = plug_in(tmp_path)
        words = [*words, *options(server, nodes=1)]
    with server, started([*words, str(script)], environ=environ) as process:
        [guardian] = {int(process.stdout.readline()) for _ in range(2)}
        assert list(folder.iterdir()), "the directory of the error files"
        os.kill(process.pid if killed == "agent" else guardian, signal.SIGKILL)
        _, stderr = process.communicate(timeout=DEADLINE_S)
    if killed == "agent" or job != "function":
        assert process.returncode == END[killed], stderr
    assert [str(path) for path in folder.rglob("*")] == []
