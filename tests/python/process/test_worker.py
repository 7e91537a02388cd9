"""elastic.worker in real workers, and in processes that elastic did not start."""

from __future__ import annotations

import re
import sys
import sysconfig
import uuid
from pathlib import Path

import pytest

from support.channels import ALONE, alone, run_script
from support.compiling import compile_library
from support.launching import clean_environment, launch, launched, python_path

WITHOUT_EXTENSION = """
import sys
sys.modules["elastic._worker"] = None
sys.modules["elastic._C"] = None
"""


def test_every_call_works_without_a_launcher_and_without_the_extension() -> None:
    script = """
from elastic import worker
worker.progress(1)
with worker.section("evaluation", limit=2.5):
    worker.progress(2)
assert not worker.should_stop(3) and not worker.has_stopped()
print(worker.round(), worker.is_restart())
"""
    for start in ("", WITHOUT_EXTENSION):
        assert alone(start + script) == "0 False\n"
        assert alone(start + script, TORCHELASTIC_RESTART_COUNT="1") == "0 True\n"
    # The variables of a worker whose descriptors were closed, or whose numbers are other files.
    script += "from elastic import _worker\nassert not _worker.open()\n"
    assert alone(script, ELASTIC_CHANNEL="1:0:1:1:1:1:1") == "0 False\n"
    assert alone(script, ELASTIC_CHANNEL="garbage") == "0 False\n"


def test_the_calls_without_the_extension_are_the_same() -> None:
    from elastic import _worker
    from elastic.worker import _absent

    names = {name for name in dir(_worker) if not name.startswith("_")} - {"nothing"}
    assert names == {name for name in vars(_absent) if name[0] != "_"} - {"annotations"}


@pytest.mark.parametrize("step", ["-1", "2**63", "'1'", "1.5"])
def test_invalid_steps_are_rejected(step: str) -> None:
    script = f"""
from elastic import worker
for call in (worker.progress, worker.should_stop):
    try:
        call({step})
    except (ValueError, OverflowError, TypeError) as error:
        print(type(error).__name__)
"""
    first, second = alone(script).split()
    assert first == second


@pytest.mark.parametrize("name", ["\udcff/a", "caf\u00e9", "a\0b", "", "\ud800" * 999])
def test_a_section_may_have_any_name(name: str) -> None:
    script = f"""
from elastic import worker
with worker.section({name!a}, limit=1):
    print("entered")
"""
    assert alone(script) == "entered\n"


def test_the_import_does_not_turn_the_gil_on() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("not a free-threaded interpreter")
    script = """
import sys
from elastic import worker
import elastic._warm._fork
print(sys._is_gil_enabled())
"""
    assert alone(script) == "False\n"


def test_first_process_of_a_worker_has_the_channel(tmp_path: Path) -> None:
    script = """
import multiprocessing, os, subprocess, sys
print("self", _worker.open())
child = os.fork()
if child == 0:
    worker.progress(2)
    with worker.section("child"):
        pass
    print("forked", _worker.open(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
code = "from elastic import worker, _worker; print('executed', _worker.open())"
subprocess.run([sys.executable, "-c", code], close_fds=False, check=True)
def target():
    worker.progress(3)
    print(multiprocessing.get_start_method(), _worker.open(), flush=True)
if __name__ == "__main__":
    process = multiprocessing.Process(target=target)
    process.start()
    process.join()
"""
    lines = run_script(tmp_path, script).splitlines()
    assert sorted(lines) == ["executed False", "fork False", "forked False", "self True"]


def test_workers_of_a_nested_launcher_have_their_own_channel(tmp_path: Path) -> None:
    inner = tmp_path / "inner.py"
    inner.write_text("from elastic import worker, _worker\nprint('inner', _worker.open())\n")
    script = f"""
import subprocess, sys
nested = [sys.executable, "-m", "elastic", "--standalone", {str(inner)!r}]
subprocess.run(nested, check=True, close_fds=False)
print("outer", _worker.open())
"""
    assert run_script(tmp_path, script).splitlines() == ["inner True", "outer True"]


def test_a_shell_between_launcher_and_script_keeps_the_channel(tmp_path: Path) -> None:
    code = "from elastic import worker, _worker; print(_worker.open())"
    wrapped = ["/bin/sh", "-c", f'"{sys.executable}" -c "{code}"; exit $?']
    done = launch(*ALONE, "--no-python", *wrapped)
    assert done.stdout == "True\n", done.stderr


def test_workers_forked_from_a_template_have_the_channel(tmp_path: Path) -> None:
    """Also if the template has imported the calls, when there was no channel to open."""
    (tmp_path / "preloaded.py").write_text("from elastic.worker import progress\n")
    script = """
import os, struct, sys
loaded = sys.modules.get("preloaded")
(loaded or worker).progress(5)
page = os.pread(_worker.stacks_descriptor(), 16, 256)
sys.stdout.write(f"{loaded is not None} {_worker.open()} {struct.unpack('qq', page)[1]}\\n")
"""
    options = ("--nproc-per-node=2", "--preload=preloaded")
    output = run_script(tmp_path, script, *options, PYTHONPATH=python_path(tmp_path))
    assert output.splitlines() == ["True True 5"] * 2


@pytest.mark.smoke
def test_round_and_restart_are_known(tmp_path: Path) -> None:
    script = """
print(worker.round(), worker.is_restart(), flush=True)
raise SystemExit(worker.round() == 0)
"""
    output = run_script(tmp_path, script, "--max-restarts=1")
    assert output.splitlines() == ["0 False", "1 True"]


SIGNAL = """
import os
def caught():
    with open("/proc/self/status") as status:
        text = next(line for line in status if line.startswith("SigCgt"))
    mask = int(text.split()[1], 16)
    return [number for number in range(34, 65) if mask >> (number - 1) & 1]
"""


def test_a_request_for_stacks_writes_them_to_the_channel(tmp_path: Path) -> None:
    script = f"""{SIGNAL}
(number,) = caught()
memory = _worker.stacks_descriptor()
os.lseek(memory, 4096, os.SEEK_SET)
def waits_here():
    os.kill(os.getpid(), number)
waits_here()
text = os.pread(memory, 60000, 4096).rstrip(b"\\0").decode()
assert "in waits_here" in text, text
print(text.count("most recent call first"))
"""
    assert run_script(tmp_path, script) == "1\n"


def test_a_request_never_writes_to_a_file_of_the_script(tmp_path: Path) -> None:
    script = f"""{SIGNAL}
(number,) = caught()
memory = _worker.stacks_descriptor()
os.closerange(3, 64)
files = [os.open({str(tmp_path)!r} + f"/file{{i}}", os.O_RDWR | os.O_CREAT) for i in range(20)]
assert memory in files
os.kill(os.getpid(), number)
worker.progress(1)
print(sum(os.fstat(file).st_size for file in files))
"""
    assert run_script(tmp_path, script) == "0\n"


# sleep(3) is called after the library's destructor: the handlers run in the reverse order. In its
# time the reader looks at least twice.
EXITS_SLOWLY = """
import ctypes, time
from elastic import _collectives
process = ctypes.CDLL(None)
process.on_exit(process.sleep, None)
looks = ctypes.c_int.in_dll(ctypes.CDLL(LIBRARY), "looks")
assert _worker.open() and _collectives.watch(_worker.page(), "0\\t0\\n")
while looks.value < LOOKS:
    time.sleep(0.01)
process.exit(3)
"""


@pytest.mark.parametrize("looks", [0, 1])
def test_the_reader_of_collectives_calls_nothing_of_a_library_that_is_destroyed(
    looks: int, tmp_path: Path
) -> None:
    name = "libtorch_cpu.so"
    library = compile_library("stub_flight_recorder.c", tmp_path / name, f"-Wl,-soname,{name}")
    script = tmp_path / "script.py"
    text = EXITS_SLOWLY.replace("LIBRARY", repr(library)).replace("LOOKS", str(looks))
    script.write_text("from elastic import _worker\n" + text)
    done = launch(*ALONE, str(script))
    assert (done.returncode, "exited with code 3" in done.stderr) == (3, True), done.stderr


SEES_NOTHING = """
import ctypes, os, time
from elastic import _collectives
LOAD
assert _worker.open() and _collectives.watch(_worker.page(), "0\\t0\\n")
while not os.pread(_worker.stacks_descriptor(), 16, 4096).strip(b"\\0"):
    time.sleep(0.05)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("has_recorder", [False, True])
def test_stacks_say_why_no_collective_operation_is_seen(has_recorder: bool, tmp_path: Path) -> None:
    load, variables, why = "", {}, "not in this version of torch"
    if has_recorder:
        name = "libtorch_cpu.so"
        library = compile_library("stub_flight_recorder.c", tmp_path / name, f"-Wl,-soname,{name}")
        load = f"ctypes.CDLL({library!r})"
        variables = {"TORCH_FR_BUFFER_SIZE": "0"}
        why = r"off \(TORCH_FR_BUFFER_SIZE=0\)"
    script = tmp_path / "script.py"
    script.write_text("from elastic import _worker\n" + SEES_NOTHING.replace("LOAD", load))
    job_id = f"unseen-{uuid.uuid4().hex}"
    with launched(
        "--nnodes=1", f"--rdzv-id={job_id}", str(script), environ=clean_environment(**variables)
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        shown = launch("stacks", job_id, check=True).stdout
        assert re.search(
            "^  the collective operations of rank 0 are not seen: torch's flight recorder is "
            rf"{why}$", shown, re.M,
        ), shown  # fmt: skip
        job.kill()
