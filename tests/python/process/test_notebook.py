"""Functions that were defined in the cells of a Jupyter kernel are launched from it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from support.launching import DEADLINE_S, assert_all_ended, clean_environment

pytest.importorskip("ipykernel", reason="needs ipykernel")
pytest.importorskip("cloudpickle", reason="needs cloudpickle")
jupyter = pytest.importorskip("jupyter_client", reason="needs jupyter_client")

SETUP = """
import os
from elastic.launcher.api import LaunchConfig, elastic_launch

def config():
    return LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
"""


class Cell(NamedTuple):
    reply: dict[str, Any]
    value: str  # of the last expression
    output: str  # stdout and stderr


class Notebook:
    def __init__(self, manager: Any, client: Any) -> None:
        self._manager = manager
        self._client = client

    def run(self, code: str, interrupt_at: str | None = None, awaited: Sequence[str] = ()) -> Cell:
        """Executes a cell; interrupts the kernel as soon as the output contains that text.

        Returns when the output has the awaited lines: a thread of ipykernel reads what other
        processes write, and may do so after the cell has ended.
        """
        values: list[str] = []
        output: list[str] = []
        waits = interrupt_at is not None

        def collect(message: dict[str, Any]) -> None:
            nonlocal waits
            content = message["content"]
            if message["msg_type"] == "stream":
                output.append(content["text"])
            elif message["msg_type"] == "execute_result":
                values.append(content["data"]["text/plain"])
            if waits and interrupt_at is not None and interrupt_at in "".join(output):
                waits = False
                self._manager.interrupt_kernel()

        reply = self._client.execute_interactive(
            code, timeout=DEADLINE_S, output_hook=collect, allow_stdin=False
        )
        while not set(awaited) <= set("".join(output).splitlines()):
            collect(self._client.get_iopub_msg(timeout=DEADLINE_S))
        return Cell(reply["content"], "".join(values), "".join(output))


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    tmp_path = tmp_path_factory.mktemp("notebook")
    folders = {
        name: str(tmp_path / name) for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "TMPDIR")
    }
    for folder in folders.values():
        os.mkdir(folder)
    environ = clean_environment(**folders)
    # With it, ipykernel does not pass on what other processes write to its stdout.
    environ.pop("PYTEST_CURRENT_TEST", None)
    manager = jupyter.KernelManager(
        kernel_name="python3", connection_file=str(tmp_path / "kernel.json")
    )
    manager.start_kernel(env=environ, cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE_S)
        running = Notebook(manager, client)
        assert running.run(SETUP).reply["status"] == "ok"
        yield running
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        assert_all_ended(environ, deadline_s=DEADLINE_S)
    assert list((tmp_path / "TMPDIR").iterdir()) == []


def test_functions_of_cells_return_values_by_rank(notebook: Notebook) -> None:
    notebook.run("offset = 100\ndef shifted(value):\n    return value + offset")
    notebook.run(
        "def train(scale):\n"
        "    line = 'from rank ' + os.environ['RANK'] + '\\n'\n"
        "    os.write(1, line.encode())\n"  # print() would make several writes to the shared pipe
        "    return shifted(scale * int(os.environ['RANK']))"
    )
    lines = ["from rank 0", "from rank 1"]
    cell = notebook.run("elastic_launch(config(), train)(10)", awaited=lines)
    assert cell.value == "{0: 100, 1: 110}", cell
    assert sorted(line for line in cell.output.splitlines() if line.startswith("from")) == lines
    notebook.run("offset = 200")  # a cell that runs again changes what the next launch sends
    assert notebook.run("elastic_launch(config(), train)(1)").value == "{0: 200, 1: 201}"


def test_traceback_of_a_failing_function_is_in_the_cell(notebook: Notebook) -> None:
    notebook.run(
        "def explode(step):\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise ValueError(f'bad step {step}')\n"
        "    import signal; signal.pause()"
    )
    cell = notebook.run("elastic_launch(config(), explode)(7)")
    assert (cell.reply["status"], cell.reply["ename"]) == ("error", "ChildFailedError")
    assert "ValueError: bad step 7" in cell.reply["evalue"]
    notebook.run(
        "try:\n"
        "    elastic_launch(config(), explode)(8)\n"
        "except Exception as error:\n"
        "    rank, failure = error.get_first_failure()"
    )
    assert notebook.run("rank, failure.message").value == "(1, 'ValueError: bad step 8')"
    assert "in explode" in notebook.run("print(failure.traceback)").output
    assert notebook.run("1 + 1").value == "2"


def test_interrupt_of_the_kernel_stops_the_workers(notebook: Notebook) -> None:
    notebook.run("def wait():\n    print('ready', flush=True)\n    import signal; signal.pause()")
    cell = notebook.run("elastic_launch(config(), wait)()", interrupt_at="ready")
    assert (cell.reply["status"], cell.reply["ename"]) == ("error", "SignalException")
    assert "SIGINT" in cell.reply["evalue"]
    notebook.run("def rank():\n    return int(os.environ['RANK'])")
    assert notebook.run("elastic_launch(config(), rank)()").value == "{0: 0, 1: 1}"
