"""What runs in a Python worker before its script changes nothing that the script can see."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import venv
import zipapp
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from elastic._site import sitecustomize
from elastic.launcher import elastic_launch

from support.channels import channel_variable, new_memory
from support.function_jobs import config
from support.launching import DEADLINE_S, clean_environment, launch, python_path
from support.paths import STUBS

FACTS = STUBS / "stub_worker_facts.py"
STACKS_SIGNAL = signal.SIGRTMAX - 3


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


def run(
    words: Sequence[object], cwd: Path, path: str | None = None, **variables: str
) -> tuple[Ended, Ended, bool]:
    """A worker without the hook, the same with it, and whether the latter has opened its channel.

    ``path``: its PYTHONPATH.
    """
    plain, hooked, messages = run_and_read(words, cwd, path, **variables)
    return plain, hooked, messages.startswith(b"o")


def run_and_read(
    words: Sequence[object], cwd: Path, path: str | None = None, **variables: str
) -> tuple[Ended, Ended, bytes]:
    """The same, with all messages of the channel: one byte each."""
    environ = clean_environment(ELASTIC_ROUND="0", OMP_NUM_THREADS="1", UMLAUT="ä\udcff=1")
    environ |= variables
    environ.pop("PYTHONPATH", None)
    memory = new_memory()
    here, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    with here, end:
        environ["ELASTIC_CHANNEL"] = channel_variable(memory, end)

        def ended(path: str | None) -> Ended:
            done = subprocess.run(
                [str(word) for word in words],
                cwd=cwd,
                env=environ | ({} if path is None else {"PYTHONPATH": path}),
                pass_fds=(memory, end.fileno()),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            return Ended(done.returncode, done.stdout, done.stderr)

        try:
            plain, hooked = ended(path), ended(sitecustomize.added_to(path))
            messages = b""
            while True:
                try:
                    messages += here.recv(1)
                except BlockingIOError:
                    break
        finally:
            os.close(memory)
    return plain, hooked, messages


def facts(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output)
    del found["signals"]["native"]
    del found["signals"]["handlers"][str(int(STACKS_SIGNAL))]
    # The descriptors of the channel are not inherited once it is open.
    found["descriptors"] = {number: kind for number, (kind, _) in found["descriptors"].items()}
    return found


def packed(folder: Path) -> Path:
    (folder / "source").mkdir()
    shutil.copy(FACTS, folder / "source" / "__main__.py")
    zipapp.create_archive(folder / "source", folder / "app.pyz")
    return folder / "app.pyz"


STARTS = {
    "script": ["facts.py", "a", "b c"],
    "path": ["./folder/../facts.py"],
    "module": ["-m", "facts", "--x"],
    "folder": ["source"],
    "archive": ["app.pyz", "a"],
    "errors for warnings": ["-W", "error", "facts.py"],
    "optimized": ["-OO", "facts.py"],
    "development": ["-X", "dev", "facts.py"],
    "without user site": ["-s", "facts.py"],
    "without bytecode": ["-B", "facts.py"],
}


@pytest.mark.smoke
@pytest.mark.parametrize("words", STARTS.values(), ids=STARTS)
def test_script_sees_what_it_sees_without_the_hook(words: list[str], tmp_path: Path) -> None:
    shutil.copy(FACTS, tmp_path / "facts.py")
    (tmp_path / "folder").mkdir()
    packed(tmp_path)
    plain, hooked, has_opened = run([sys.executable, "-u", *words], tmp_path)
    assert has_opened and plain.code == hooked.code == 0, hooked
    assert facts(hooked.output) == facts(plain.output)
    assert hooked.errors == plain.errors


@pytest.mark.parametrize("path", [None, "", ":", "{0}", ":{0}:", "{0}::/nowhere", "{0}/"])
@pytest.mark.parametrize("safe", ["", "1"])
def test_search_path_is_restored_to_the_byte(path: str | None, safe: str, tmp_path: Path) -> None:
    shutil.copy(FACTS, tmp_path / "facts.py")
    path = path and path.format(tmp_path)
    plain, hooked, has_opened = run(
        [sys.executable, "facts.py"], tmp_path, path, PYTHONSAFEPATH=safe
    )
    assert has_opened and facts(hooked.output) == facts(plain.output)
    assert facts(plain.output)["environ"].get("PYTHONPATH") == path


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_isolated_workers_have_no_hook(flag: str, tmp_path: Path) -> None:
    shutil.copy(FACTS, tmp_path / "facts.py")
    plain, hooked, has_opened = run([sys.executable, flag, "facts.py"], tmp_path)
    assert not has_opened and plain.code == hooked.code == 0
    without, with_folder = facts(plain.output), facts(hooked.output)
    for found in (without, with_folder):
        found["environ"].pop("PYTHONPATH", None)
        found["c_environ"] = [one for one in found["c_environ"] if "PYTHONPATH" not in one]
        for entries in (found["path"], found["preparation"]["sys_path"]):
            if flag == "-S" and sitecustomize.FOLDER in entries:
                entries.remove(sitecustomize.FOLDER)
    assert with_folder == without


SCRIPTS = {
    "processes": (
        "import multiprocessing as m, os, sys\n"
        "def f(q): q.put((__name__, sys.path, sorted(os.environ.items()), [n for n in sys.modules\n"
        "                 if 'elastic' in n], sys.argv))\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork', 'forkserver'):\n"
        "        c = m.get_context(method); q = c.SimpleQueue()\n"
        "        p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join()"
    ),
    "pickles of main": (
        "import concurrent.futures as c, multiprocessing as m, pickle\n"
        "class A:\n    def __init__(self, x): self.x = x\n"
        "def f(a): return A(a.x + 1)\n"
        "if __name__ == '__main__':\n"
        "    print(pickle.dumps(A(1)))\n"
        "    with c.ProcessPoolExecutor(1, m.get_context('spawn')) as p:\n"
        "        print(p.submit(f, A(1)).result().x)"
    ),
    "children": (
        "import os, subprocess, sys\n"
        "show = 'import os, sys; print(sys.path, sorted(os.environ.items()), len(sys.meta_path))'\n"
        "for close in (True, False):\n"
        "    print(subprocess.run([sys.executable, '-c', show], close_fds=close,\n"
        "                         stdout=subprocess.PIPE).stdout)\n"
        "print(subprocess.run(['env', '-0'], stdout=subprocess.PIPE).stdout.split(bytes(1)))"
    ),
    "exit": "import sys; sys.exit(7)",
    "traceback": "def f():\n    import nothing_of_this_name\nf()",
    "package of the same name": (
        "import os, sys\n"
        "os.makedirs('elastic', exist_ok=True)\n"
        "open('elastic/__init__.py', 'w').write('mine = 1')\n"
        "import elastic; print(elastic.mine)"
    ),
    "reload": (
        "import importlib, json, json.decoder\n"
        "importlib.reload(json.decoder); print(json.__spec__.origin, vars(json.__loader__))"
    ),
    "own excepthook": (
        "import sys\n"
        "print(sys.excepthook is sys.__excepthook__)\n"
        "sys.excepthook = lambda kind, *_: print('mine', kind)\n"
        "1 / 0"
    ),
    "own audit hook": (
        "import sys; seen = []\n"
        "sys.addaudithook(lambda name, arguments: seen.append(name))\n"
        "import colorsys; print(seen)"
    ),
    "no such faults": (
        "import faulthandler, gc, threading, warnings\n"
        "print(faulthandler.is_enabled(), gc.isenabled(), threading.active_count(),\n"
        "      warnings.filters)"
    ),
}


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_script_does_what_it_does_without_the_hook(source: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(source)
    plain, hooked, has_opened = run([sys.executable, "-W", "error", "script.py"], tmp_path)
    assert has_opened and hooked == plain


@pytest.mark.parametrize(
    ("source", "is_reported"),
    [
        ("raise ValueError('bad')", True),
        ("import threading\nthreading.Thread(target=lambda: print('runs')).start()\n1 / 0", True),
        ("import sys\nsys.excepthook = print\n1 / 0", True),
        ("import threading\nthreading.Thread(target=lambda: 1 / 0).start()", False),
        ("import sys\ntry: 1 / 0\nexcept ZeroDivisionError: pass\nsys.exit(3)", False),
        ("import os\nif os.fork() == 0: 1 / 0\nos.wait()", False),
    ],
)
def test_exception_that_ends_the_main_thread_is_reported(
    source: str, is_reported: bool, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(source)
    plain, hooked, messages = run_and_read([sys.executable, "script.py"], tmp_path)
    assert messages == (b"oe" if is_reported else b"o") and hooked.code == plain.code


TOOLS = {
    "pdb": ["-m", "pdb", "-c", "break 2", "-c", "continue", "-c", "p sys.argv", "-c", "continue"],
    "cProfile": ["-m", "cProfile", "-o", "profile"],
    "trace": ["-m", "trace", "--count", "--missing", "--coverdir=count"],
    "coverage": ["-m", "coverage", "run", "--data-file=data"],
    "debugpy": ["-m", "debugpy", "--listen", "0"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tools_run_the_script_as_without_the_hook(tool: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(tool.lower() if tool != "cProfile" else tool) is None:
        pytest.skip(f"{tool} is not installed")
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv, __name__)\n")
    words = [sys.executable, *TOOLS[tool], "script.py", "a"]
    plain, hooked, has_opened = run(words, tmp_path, PYDEVD_DISABLE_FILE_VALIDATION="1")
    assert has_opened and "['script.py', 'a'] __main__" in hooked.output
    assert hooked == plain


@pytest.mark.parametrize("source", ["raise ImportError('no', name='x')", "1 / 0", ""])
def test_sitecustomize_of_the_user_runs(source: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = tmp_path / "own" / "sitecustomize.py"
    own.write_text(f"import sys\nprint(__name__, __file__, sys.path[:2])\n{source}\n")
    (tmp_path / "script.py").write_text(
        "import sys\nprint(getattr(sys.modules.get('sitecustomize'), '__file__', None))\n"
    )
    plain, hooked, has_opened = run([sys.executable, "script.py"], tmp_path, str(own.parent))
    assert has_opened and hooked == plain and str(own) in plain.output


def test_usercustomize_and_sitecustomize_of_an_environment_run(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", system_site_packages=True, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for base, name in (("env", "sitecustomize"), ("user", "usercustomize")):
        folder = tmp_path / base / "lib" / version / "site-packages"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("print(__name__, __file__)\n")
    (tmp_path / "script.py").write_text("import sys; print(sys.prefix, sys.path)\n")
    plain, hooked, has_opened = run(
        [python, "script.py"], tmp_path, PYTHONUSERBASE=str(tmp_path / "user")
    )
    assert hooked == plain and has_opened, hooked  # although elastic is not installed there
    assert plain.output.startswith("sitecustomize ") and "\nusercustomize " in plain.output


def test_install_that_cannot_be_written_to(tmp_path: Path) -> None:
    package = Path(sitecustomize.FOLDER).parent
    read_only = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", read_only, package]
    if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace")
    (tmp_path / "script.py").write_text(
        f"import sys\nprint(sys.path, sys.argv)\nopen({str(package / 'written')!r}, 'w')\n"
    )
    plain, hooked, has_opened = run([*words, sys.executable, "script.py"], tmp_path)
    assert has_opened and hooked == plain and "Read-only file system" in plain.errors


OTHERS = [f"python{version}" for version in ("2.7", "3.8", "3.10", "3.11", "3.12", "3.13", "3.14")]


@pytest.mark.parametrize("name", OTHERS)
def test_other_interpreters_start_as_without_the_hook(name: str, tmp_path: Path) -> None:
    found = shutil.which(name)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"there is no {name}")
    (tmp_path / "script.py").write_text(
        "import os, sys\nprint(sys.path, os.environ.get('PYTHONPATH'), sorted(sys.modules)[:0])\n"
    )
    plain, hooked, _ = run([found, "script.py"], tmp_path)
    assert hooked == plain and plain.code == 0


@pytest.mark.parametrize("content", ["", "broken"])
def test_worker_runs_if_the_hook_fails(content: str, tmp_path: Path) -> None:
    """The package of this name is another one, or its extension cannot be loaded."""
    (tmp_path / "elastic").mkdir()
    (tmp_path / "elastic" / "__init__.py").write_text("raise SystemExit('imported')")
    if content:
        (tmp_path / "elastic" / "_worker.py").write_text("1 / 0")
    (tmp_path / "script.py").write_text("print('runs')")
    plain, hooked, has_opened = run([sys.executable, "script.py"], tmp_path, str(tmp_path))
    assert hooked == plain == Ended(0, "runs\n", "")
    assert has_opened == (not content)


# In torch's place, with as much of it as the hook uses.
FAKE_TORCH = {
    "__init__": "from torch import compiler, optim\n",
    "compiler": "def is_compiling(): return False\n",
    "optim/__init__": "from torch.optim import optimizer\n",
    "optim/optimizer": (
        "hooks = []\n"
        "register_optimizer_step_post_hook = hooks.append\n"
        "class Optimizer:\n"
        "    def step(self):\n"
        "        for hook in hooks: hook(self, (), {})\n"
    ),
}
STEPS = (
    "import os, struct, torch\n"
    "{first}"
    "one, other, new = (torch.optim.optimizer.Optimizer() for _ in range(3))\n"
    "import colorsys\n"
    "for _ in range(5): one.step(); other.step()\n"
    "for _ in range(3): new.step()\n"
    "import sched\n"
    "memory = int(os.environ['ELASTIC_CHANNEL'].split(':')[1])\n"
    "print(*struct.unpack('qq', os.pread(memory, 16, 256))[1:])\n"
)


@pytest.mark.parametrize(
    ("first", "variables", "steps"),
    [
        ("", {}, 7),  # the first step of `new` belongs to the step that is under way
        ("from elastic import worker\n", {}, -1),
        ("from elastic import worker\n", {"ELASTIC_AUTO_PROGRESS": "1"}, 7),
        ("from elastic import worker; worker.progress(40)\n", {"ELASTIC_AUTO_PROGRESS": "1"}, 40),
        ("", {"ELASTIC_AUTO_PROGRESS": "0"}, -1),
    ],
)
def test_steps_of_optimizers_are_counted(
    first: str, variables: dict[str, str], steps: int, tmp_path: Path
) -> None:
    for name, source in FAKE_TORCH.items():
        path = tmp_path / "torch" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (tmp_path / "script.py").write_text(STEPS.format(first=first))
    address = f"elastic-test-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as names:
        names.bind(f"\0{address}")
        names.setblocking(False)
        variables |= {"ELASTIC_FIRST_STEP_MODULES": address, "LOCAL_RANK": "0"}
        _, hooked, _ = run(
            [sys.executable, "script.py"], tmp_path, python_path(tmp_path), **variables
        )
        assert hooked == Ended(0, f"{steps}\n", "")
        if variables.get("ELASTIC_AUTO_PROGRESS") != "0":
            sent = names.recv(1 << 16).decode().split("\n")
            assert "colorsys" in sent and "sched" not in sent


# torch waits for it without a limit. Whoever reads the line removes the lock.
LOCKED = """
import os, sys
from torch.utils.file_baton import FileBaton
class Reader:
    def write(self, text):
        sys.__stdout__.write(text)
        os.remove("lock")
    def flush(self): pass
FileBaton.wait.__globals__["LOCK_S"] = 0.01
open("lock", "w").close()
sys.stderr = Reader()
FileBaton("lock").wait()
"""


def test_wait_for_the_lock_of_a_killed_build_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOCKED)
    done = launch("--standalone", str(tmp_path / "train.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"elastic: rank 0 has waited 0\.01 s for a build of a torch extension, whose lock lock was "
        r"made \d+ s ago: if no process builds, a build that was killed has left it; remove it\n",
        done.stdout,
    ), done.stdout


def test_functions_have_the_hook_and_the_variables_of_the_launcher() -> None:
    path = os.environ.get("PYTHONPATH")
    for settings in ({}, {"warm": True}):
        assert elastic_launch(config(2, **settings), os.getenv)("PYTHONPATH") == {0: path, 1: path}


SHOWS_HANDLER = (
    "import os, sys\n"
    "caught = open('/proc/self/status').read().split('SigCgt:')[1].split()[0]\n"
    f"found = int(caught, 16) >> {STACKS_SIGNAL - 1} & 1\n"
    "sys.stdout.write(f'{found} {os.environ.get(\"PYTHONPATH\")} {sys.argv}\\n')\n"
)


@pytest.mark.parametrize(
    ("options", "variables", "is_hooked"),
    [
        ((), {}, 1),
        (("--auto-progress",), {}, 1),
        (("--warm", "--nproc-per-node=2", "--preload=json"), {}, 1),
        (("--no-auto-progress",), {}, 0),
        (("--no-auto-progress", "--warm", "--nproc-per-node=2", "--preload=json"), {}, 0),
        ((), {"ELASTIC_AUTO_PROGRESS": "0"}, 0),
        ((), {"PET_NO_AUTO_PROGRESS": "1"}, 0),
    ],
)
def test_the_hook_is_on_unless_it_is_turned_off(
    options: tuple[str, ...], variables: dict[str, str], is_hooked: int, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SHOWS_HANDLER)
    environ = clean_environment(**variables)
    script = str(tmp_path / "script.py")
    done = launch("--standalone", *options, script, "a", environ=environ, check=True)
    line = f"{is_hooked} {os.environ.get('PYTHONPATH')} {[script, 'a']}\n"
    assert done.stdout == line * (2 if "--warm" in options else 1)


def test_programs_and_standard_input(tmp_path: Path) -> None:
    words = ("sh", "-c", 'echo "$PYTHONPATH"')
    done = launch("--standalone", "--no-python", *words, check=True)
    assert sitecustomize.FOLDER not in done.stdout
    done = launch("--standalone", "-", "a", input=SHOWS_HANDLER, check=True)
    assert done.stdout == f"1 {os.environ.get('PYTHONPATH')} ['-', 'a']\n"
