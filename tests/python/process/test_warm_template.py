"""The template process: its workers equal fresh processes, and it finds unfit modules."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
from elastic._warm.ranks import NAMES

from support.launching import clean_environment, launch, python_path
from support.paths import STUBS
from support.warm_modules import CRASHING, HOSTILE
from support.warm_template import DEADLINE_S, Message, Template, wait_for

FACTS = STUBS / "stub_worker_facts.py"


@pytest.fixture(autouse=True)
def _reap_orphans() -> Iterator[None]:
    """This process is a subreaper, like a guardian."""
    yield
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            continue
    except ChildProcessError:
        return


def fresh(program: list[str], environ: Mapping[str, str], cwd: Path) -> tuple[int, str]:
    """Exit code and output of a worker that is executed."""
    with open(cwd / "output", "w+b") as file:
        done = subprocess.run(
            [sys.executable, "-u", *program],
            env=environ,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            timeout=DEADLINE_S,
            check=False,
        )
        file.seek(0)
        return done.returncode, file.read().decode()


def forked(
    program: list[str], environ: Mapping[str, str], cwd: Path, modules: str = "json"
) -> tuple[int, str]:
    with Template(modules, program, environ, cwd) as template:
        message = template.receive()
        assert message.kind == "ready", message
        return template.run(environ)


PROGRAMS = {
    "script": ["facts.py", "a", "b c"],
    "script by a path": ["./folder/../facts.py"],
    "script by a link": ["link.py"],
    "module": ["-m", "facts", "--x"],
    "package": ["-m", "package"],
    "folder": ["package"],
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_worker_sees_what_a_fresh_process_sees(program: list[str], tmp_path: Path) -> None:
    shutil.copy(FACTS, tmp_path / "facts.py")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "facts.py").touch()
    (tmp_path / "link.py").symlink_to(FACTS)
    (tmp_path / "package").mkdir()
    shutil.copy(FACTS, tmp_path / "package" / "__main__.py")
    (tmp_path / "package" / "__init__.py").touch()
    environ = clean_environment(OMP_NUM_THREADS="2", EMPTY="", RANK="3", UMLAUT="ä\udcff=1")
    _, expected = fresh(program, environ, tmp_path)
    code, output = forked(program, environ, tmp_path)
    assert code == 0, output
    assert json.loads(output) == json.loads(expected)


ENDINGS = {
    "no output": "",
    "exit code": "import sys; sys.exit(7)",
    "exit with text": "import sys; sys.exit('last words')",
    "exit at once": "import os; os._exit(9)",
    "exception": "def f():\n    raise ValueError('no')\nf()",
    "chained exception": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError(1) from e",
    "syntax error": "def f(:\n",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[1], a[2].tb_lineno)\n1 / 0",
    "atexit": "import atexit, sys; atexit.register(print, 'bye'); sys.exit(3)",
    "thread outlives the script": (
        "import threading\n"
        "threading.Thread(target=lambda: (threading.Event().wait(0.1), print('thread'))).start()"
    ),
    "buffered output": "import sys; sys.stdout.write('a'); sys.stderr.write('b'); print('c')",
    "warning": "import warnings; warnings.warn('x')",
    "generator of main": "print(__name__, __file__ is not None, globals().keys() >= {'__spec__'})",
    "spawn": (
        "import multiprocessing as m\n"
        "def f(q): q.put(__name__)\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork', 'forkserver'):\n"
        "        c = m.get_context(method); q = c.SimpleQueue()\n"
        "        p = c.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join()"
    ),
    "pickled class": (
        "import concurrent.futures as c, multiprocessing as m\n"
        "class A:\n    def __init__(self, x): self.x = x\n"
        "def f(a): return A(a.x + 1)\n"
        "if __name__ == '__main__':\n"
        "    with c.ProcessPoolExecutor(1, m.get_context('spawn')) as p:\n"
        "        print(p.submit(f, A(1)).result().x)"
    ),
}


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    """One template for all scripts: each request replaces the script's content."""
    folder = tmp_path_factory.mktemp("endings")
    (folder / "script.py").touch()
    with Template("json,multiprocessing", ["script.py"], clean_environment(), folder) as template:
        assert template.receive().kind == "ready"
        yield template


@pytest.mark.parametrize("source", ENDINGS.values(), ids=ENDINGS)
def test_worker_ends_like_a_fresh_process(source: str, endings: Template) -> None:
    folder = endings.cwd
    (folder / "script.py").write_text(source)
    environ = clean_environment()
    assert endings.run(environ) == fresh(["script.py"], environ, folder)


def test_missing_script_is_reported_as_by_the_interpreter(endings: Template) -> None:
    environ = clean_environment()
    (endings.cwd / "script.py").unlink(missing_ok=True)
    assert endings.run(environ) == fresh(["script.py"], environ, endings.cwd)


def test_each_worker_has_its_own_random_numbers(tmp_path: Path) -> None:
    shutil.copy(FACTS, tmp_path / "facts.py")
    environ = clean_environment()
    with Template("numpy", ["facts.py", "--random"], environ, tmp_path) as template:
        assert template.receive().kind == "ready"
        first, second = (json.loads(template.run(environ)[1]) for _ in range(2))
    for name in ("random", "numpy", "authkey"):
        assert first[name] != second[name], name


@pytest.mark.parametrize("source", HOSTILE, ids=[text for text in HOSTILE.values()])
def test_template_is_unfit_after_a_hostile_import(source: str, tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(source)
    (tmp_path / "script.py").touch()
    with Template("json,hostile", ["script.py"], clean_environment(), tmp_path) as template:
        message = template.receive()
        assert message.kind == "unfit"
        assert message.text.startswith(("the import of hostile ", "cannot import hostile "))
        assert HOSTILE[source] in message.text


def test_module_that_draws_random_numbers_is_fit(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text(
        "import random\nfor _ in range(2000):\n    random.randrange(10**9)\nrandom.gauss(0, 1)\n"
    )
    (tmp_path / "seeding.py").write_text("import random\nrandom.random()\nrandom.seed(7)\n")
    (tmp_path / "script.py").touch()
    for module, kind in (("drawing", "ready"), ("seeding", "unfit")):
        with Template(module, ["script.py"], clean_environment(), tmp_path) as template:
            assert template.receive().kind == kind, module


def test_module_of_the_script_that_is_not_fit_is_left_out(tmp_path: Path) -> None:
    packages = tmp_path / "environment" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "of_another_environment.py").touch()
    (tmp_path / "local.py").touch()
    (packages / "holding.py").write_text("import os\nos.open('/', os.O_RDONLY)\n")
    names = ["colorsys", "of_another_environment", "holding", "local"]
    (tmp_path / "script.py").write_text(f"import {', '.join(names)}\n")
    environ = clean_environment(PYTHONPATH=python_path(packages))
    with Template("", ["script.py"], environ, tmp_path) as template:
        message = template.receive()
        assert message.kind == "left out"
        assert message.text.startswith("the import of holding left the descriptor")
        assert template.receive().kind == "ready"
        (tmp_path / "script.py").write_text(
            f"import sys\nprint([name in sys.modules for name in {names}])\n"
        )
        assert template.run(environ) == (0, "[True, True, False, False]\n")


OF_A_RANK = {
    "import os\nRANK = int(os.environ.get('RANK', 0))\n": "read RANK, which only a worker has",
    "import os\nRANK = os.getenv('LOCAL_RANK')\n": "read LOCAL_RANK, which only a worker has",
    "import os\nIS_ONE = 'WORLD_SIZE' not in os.environ\n": "read WORLD_SIZE, which only",
    "import os\nIN_A_JOB = 'TORCHELASTIC_RUN_ID' in os.environ\n": "read TORCHELASTIC_RUN_ID,",
    "import random\nrng = random.Random(1)\n": "made a random generator that all ranks would share",
    "import numpy\nrng = numpy.random.default_rng()\n": "made a random generator that all ranks",
    "import numpy\nrng = numpy.random.RandomState()\n": "made a random generator that all ranks",
}


@pytest.mark.parametrize("source", OF_A_RANK)
def test_module_that_computes_something_of_a_rank_is_left_out_alone(
    source: str, tmp_path: Path
) -> None:
    (tmp_path / "ranky.py").write_text(source)
    (tmp_path / "script.py").write_text(
        "import sys\nprint('ranky' in sys.modules, 'colorsys' in sys.modules)\n"
    )
    environ = clean_environment()
    with Template("numpy,ranky,colorsys", ["script.py"], environ, tmp_path) as template:
        message = template.receive()
        assert message.kind == "left out"
        assert message.text.startswith("the import of ranky " + OF_A_RANK[source])
        assert template.receive().kind == "ready"
        assert template.run(environ) == (0, "False True\n")


def test_every_variable_that_only_a_worker_has_is_known() -> None:
    environ = clean_environment()
    words = ("--standalone", "--no-python", "sh", "-c", "env | cut -d = -f 1")
    of_worker = set(launch(*words, environ=environ).stdout.split()) - environ.keys()
    for_others = {"OMP_NUM_THREADS", "ELASTIC_CHANNEL"}
    assert "RANK" in of_worker
    assert {name for name in of_worker if not name.startswith("TORCH_")} <= NAMES | for_others


def test_worker_that_sees_another_device_than_a_module_has_read_is_executed(tmp_path: Path) -> None:
    (tmp_path / "devices.py").write_text("import os\nos.environ.get('CUDA_VISIBLE_DEVICES')\n")
    (tmp_path / "script.py").touch()
    environ = {**clean_environment(), "CUDA_VISIBLE_DEVICES": "0,1"}
    with Template("devices", ["script.py"], environ, tmp_path) as template:
        assert template.receive().kind == "ready"
        assert template.run(environ)[0] == 0
        pipe = template.request({**environ, "CUDA_VISIBLE_DEVICES": "1"}, 1)
        message = template.receive()
        assert (message.kind, message.text) == (
            "refused",
            "its variable CUDA_VISIBLE_DEVICES differs, which devices read when it was imported",
        )
        os.close(pipe)


def test_module_that_has_only_shared_state_is_preloaded(tmp_path: Path) -> None:
    (tmp_path / "harmless.py").write_text(
        "import os, random, secrets, numpy\n"
        "secure, rand, whole = random.SystemRandom(), numpy.random.rand, dict(os.environ)\n"
        "home = os.environ.get('HOME')\n"
    )
    (tmp_path / "script.py").touch()
    with Template("numpy,harmless", ["script.py"], clean_environment(), tmp_path) as template:
        assert template.receive().kind == "ready"


GET_RANK = (
    "def _get_rank():\n    return int(os.environ['RANK']) if 'RANK' in os.environ else None\n"
)


@pytest.mark.parametrize(
    ("module", "rank"),
    [
        ("lightning_fabric.utilities.rank_zero", "_get_rank() or 0"),
        ("torchmetrics.utilities.prints", "int(os.environ.get('LOCAL_RANK', 0))"),
    ],
)
def test_rank_of_lightning_is_that_of_the_worker(module: str, rank: str, tmp_path: Path) -> None:
    """A package with the names of Lightning's module, and its way to compute them."""
    *folders, name = module.split(".")
    package = tmp_path.joinpath(*folders)
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / f"{name}.py").write_text(
        f"import os\n{GET_RANK}def rank_zero_only(f):\n    return f\nrank_zero_only.rank = {rank}\n"
    )
    (tmp_path / "script.py").write_text(
        f"from {module} import rank_zero_only\nprint(rank_zero_only.rank)\n"
    )
    environ = clean_environment()
    with Template(module, ["script.py"], environ, tmp_path) as template:
        assert template.receive().kind == "ready"
        assert template.run(environ | {"RANK": "2", "LOCAL_RANK": "2"}) == (0, "2\n")


def test_generator_without_a_seed_has_other_numbers_in_each_worker(tmp_path: Path) -> None:
    (tmp_path / "drawing.py").write_text("import random\nrng = random.Random()\n")
    (tmp_path / "script.py").write_text("import drawing\nprint(drawing.rng.random())\n")
    environ = clean_environment()
    with Template("drawing", ["script.py"], environ, tmp_path) as template:
        assert template.receive().kind == "ready"
        numbers = [template.run(environ) for _ in range(3)]
    assert [code for code, _ in numbers] == [0, 0, 0]
    assert len({text for _, text in numbers}) == 3


def test_variable_of_arrow_is_set_only_while_modules_are_imported(tmp_path: Path) -> None:
    show = "import os\nat_import = os.environ.get('JE_ARROW_MALLOC_CONF')\n"
    (tmp_path / "allocating.py").write_text(show)
    (tmp_path / "script.py").write_text(
        "import os, allocating\n"
        "print(allocating.at_import, os.environ.get('JE_ARROW_MALLOC_CONF'))\n"
    )
    own = clean_environment(JE_ARROW_MALLOC_CONF="narenas:1")
    for environ, seen in (
        (clean_environment(), "background_thread:false None\n"),
        (own, "narenas:1 narenas:1\n"),
    ):
        with Template("allocating", ["script.py"], environ, tmp_path) as template:
            assert template.receive().kind == "ready"
            assert template.run(environ) == (0, seen)


def test_worker_keeps_a_file_that_has_the_number_of_the_templates_socket(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import atexit, gc, os, sys\n"
        "number = os.open('kept', os.O_RDWR | os.O_CREAT)\n"
        "atexit.register(lambda: print(number, os.write(number, b'at exit')))\n"
        "sys.modules['__main__'].__dict__.pop('gc').collect()\n"
    )
    assert forked(["script.py"], clean_environment(), tmp_path) == (0, "3 7\n")


def has_huge_pages() -> bool:
    """Whether this process gets them for as much memory as the template."""
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for offset in range(0, len(memory), mmap.PAGESIZE):
            memory[offset] = 1
        try:
            memory.madvise(25)  # MADV_COLLAPSE
        except OSError:
            return False
    return True


@pytest.mark.alone
def test_data_of_the_template_is_in_huge_pages(tmp_path: Path) -> None:
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("MADV_COLLAPSE needs Linux 6.1")
    (tmp_path / "large.py").write_text("data = bytearray(b'x') * (64 << 20)\n")
    (tmp_path / "script.py").write_text(
        "import large\nlarge.data[-1] = 0\nprint(large.data.count(b'x'))\n"
    )
    if not has_huge_pages():
        pytest.skip("the kernel gives no huge pages, or has none left")
    with Template("large", ["script.py"], clean_environment(), tmp_path) as template:
        assert template.receive().kind == "ready"
        with open(f"/proc/{template.process.pid}/smaps_rollup") as file:
            sizes = {line.split(":")[0]: line.split()[1] for line in file if ":" in line}
        assert int(sizes["AnonHugePages"]) > 32 << 10, sizes
        assert template.run(clean_environment()) == (0, f"{(64 << 20) - 1}\n")


@pytest.mark.parametrize("source", CRASHING)
def test_template_that_crashes_ends(source: str, tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(source)
    (tmp_path / "script.py").touch()
    with Template("crashing", ["script.py"], clean_environment(), tmp_path) as template:
        message = template.receive()
        assert (message.kind, message.pid) == ("ended", CRASHING[source])


REFUSED = {
    "another interpreter": (["/usr/bin/other", "-u", "script.py"], {}, "does not begin with"),
    "an option": ([sys.executable, "-u", "-c", "pass"], {}, "does not support the option -c"),
    "a variable that is read at start": (None, {"PYTHONHASHSEED": "1"}, "PYTHONHASHSEED differs"),
    "a variable that is read at import": (None, {"OPENBLAS_VERBOSE": "2"}, "OPENBLAS_VERBOSE"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_worker_is_refused(
    case: tuple[list[str] | None, dict[str, str], str], endings: Template
) -> None:
    argv, variables, reason = case
    environ = clean_environment()
    with open(endings.cwd / "output", "w+b") as file:
        pipe = endings.request(environ | variables, file.fileno(), argv=argv)
        message = endings.receive()
    os.close(pipe)
    assert (message.kind, message.id) == ("refused", 7)
    assert reason in message.text


def test_worker_inherits_the_passed_descriptors(endings: Template) -> None:
    (endings.cwd / "script.py").write_text(
        "import os\nos.write(5, b'through 5')\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))"
    )
    environ = clean_environment()
    reader, writer = os.pipe()
    with open(endings.cwd / "output", "w+b") as file:
        pipe = endings.request(environ, file.fileno(), descriptors={5: writer, 9: writer})
        os.close(writer)
        message = endings.receive()
        message.run_worker()
        assert wait_for(message.pid) == 0
        file.seek(0)
        assert file.read() == b"[0, 1, 2, 3, 5, 9]\n"  # 3 is the listing's own
    assert os.read(reader, 100) == b"through 5"
    assert os.read(reader, 100) == b""
    os.close(reader)
    os.close(pipe)


@contextmanager
def requested(folder: Path) -> Iterator[tuple[Template, Message, BinaryIO]]:
    """A worker that waits for its release, with its template and its output."""
    (folder / "script.py").write_text("print('runs')\n")
    environ = clean_environment()
    with (
        Template("json", ["script.py"], environ, folder) as template,
        open(folder / "output", "w+b") as file,
    ):
        assert template.receive().kind == "ready"
        pipe = template.request(environ, file.fileno())
        yield template, template.receive(), file
        os.close(pipe)


def test_worker_runs_although_the_template_was_killed_after_its_message(tmp_path: Path) -> None:
    with requested(tmp_path) as (template, message, file):
        assert os.getpgid(message.pid) != template.process.pid  # also before it has begun
        os.killpg(template.process.pid, signal.SIGKILL)
        template.process.wait(DEADLINE_S)
        message.run_worker()
        assert wait_for(message.pid) == 0
        file.seek(0)
        assert file.read() == b"runs\n"


def test_worker_that_is_not_released_ends(tmp_path: Path) -> None:
    with requested(tmp_path) as (_, message, file):
        os.close(message.release)
        assert wait_for(message.pid) == 1
        file.seek(0)
        assert file.read() == b""


def test_worker_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent-death signal and the parent are set before the script runs."""
    (tmp_path / "script.py").write_text(
        "import ctypes, os\nnumber = ctypes.c_int()\n"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(number))\nprint(number.value, os.getppid())\n"
    )
    assert forked(["script.py"], clean_environment(), tmp_path) == (0, f"9 {os.getpid()}\n")


def test_template_learns_what_a_worker_has_imported(tmp_path: Path) -> None:
    """A module that is not fit is left out alone, and the template serves meanwhile."""
    packages = tmp_path / "environment" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (packages / "crashing.py").write_text("import os\nos.abort()\n")
    (packages / "of_a_rank.py").write_text("import os\nRANK = os.environ.get('RANK')\n")
    (packages / "absent.py").write_text("import nothing_of_this_name\n")
    (packages / "of_that_rank.py").write_text("import of_a_rank\n")  # the same reason once more
    names = ["colorsys", "threaded", "crashing", "of_a_rank", "absent", "of_that_rank", "sched",
             "local"]  # fmt: skip
    (tmp_path / "local.py").touch()
    (tmp_path / "script.py").write_text(
        f"import sys\nprint([name for name in {names} if name in sys.modules])\n"
    )
    address = f"elastic-test-{os.urandom(8).hex()}"
    environ = clean_environment(
        PYTHONPATH=python_path(packages), ELASTIC_FIRST_STEP_MODULES=address
    )
    with Template("json", ["script.py"], environ, tmp_path) as template:
        assert template.receive().kind == "ready"
        assert template.run(environ) == (0, "[]\n")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join([*names, "not a name"]).encode(), f"\0{address}")
        reasons = [template.receive() for _ in range(4)]
        assert [reason.kind for reason in reasons] == ["left out"] * 4
        assert all(f" {name} " in one.text for name, one in zip(names[1:5], reasons, strict=True))
        assert "left a thread" in reasons[0].text and "signal 6" in reasons[1].text
        assert template.receive().kind == "ready"
        for _ in range(2):
            assert template.run(environ) == (0, "['colorsys', 'sched']\n")
