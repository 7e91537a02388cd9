"""Installs the C++ library as its page says, and builds programs of other projects with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support.launching import (
    DEADLINE_S,
    clean_environment,
    free_endpoint,
    job_at,
    launch,
    launcher_command,
    run_program,
)
from support.paths import ROOT
from support.readme import snippets

# The commands of docs/api.md, which test_readme.py compares with the page.
INSTALL_LIBRARY = [
    "cmake -S . -B build/install -DCMAKE_INSTALL_PREFIX=$HOME/elastic",
    "cmake --build build/install --parallel 4",
    "cmake --install build/install",
]
# The machine of the test has GoogleTest; a user of the library need not have it.
WITHOUT_TEST_TOOLS = "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    # For ccache, if tests/run.sh has set it up: it has compiled the same files for the package.
    environ = clean_environment(CCACHE_BASEDIR=str(cwd or ROOT))
    return run_program(command, cwd=cwd, environ=environ, check=True, timeout=3600).stdout


def install(home: Path, *options: str) -> Path:
    """The install prefix, made by the page's commands from a copy of the sources."""
    source = home / "source"
    source.mkdir()
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    for name in ("cmake", "csrc"):
        shutil.copytree(ROOT / name, source / name)
    configure, build, to_prefix = (
        command.replace("$HOME", str(home)).split() for command in INSTALL_LIBRARY
    )
    # Compiled as the package is (pyproject.toml): a cache has all of it.
    run(*configure, WITHOUT_TEST_TOOLS, "-DCMAKE_BUILD_TYPE=MinSizeRel", *options, cwd=source)
    run(*build, cwd=source)
    run(*to_prefix, cwd=source)
    source.rename(home / "source-moved-away")  # nothing installed may refer to it
    return home / "elastic"


def check_consumers(prefix: Path, directory: Path) -> None:
    """Another project finds the library, links with it, and its programs run."""
    (snippet,) = snippets("cpp", "docs/api.md")
    (directory / "snippet.cc").write_text(snippet)
    build = directory / "build"
    run("cmake", "-S", ROOT / "tests/install", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DSNIPPET={directory / 'snippet.cc'}")  # fmt: skip
    run("cmake", "--build", build, "--parallel", "2")
    assert "works" in run(build / "consumer")
    printed = run(build / "snippet")
    assert sorted(printed.split("\n"))[1:] == ["I am rank 0", "I am rank 1"]
    check_snapshots(build / "snapshots")
    check_launcher(build / "cpp_launcher/cpp_launcher")


def check_snapshots(program: Path) -> None:
    """A rank in C gets its bytes back after a kill, and survives a limit of the size of files."""
    options = ("--nproc-per-node=1", "--max-restarts=1", "--restart-backoff=0", "--no-python")
    done = launch(*options, str(program))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["from 0", "from 7"]
    limit = 'ulimit -f 1024 && exec "$@"'  # blocks of 512 bytes: less than its state has
    command = launcher_command(*options, str(program), "limited")
    done = run_program(["sh", "-c", limit, "sh", *command])
    assert done.returncode == 0, done.stderr
    assert "not saved: the snapshot is larger than this process may make a file" in done.stdout


def check_launcher(program: Path) -> None:
    """The example, which has no Python, forms one job with an agent in Python."""
    assert "python" not in run("ldd", program)
    endpoint = free_endpoint()
    worker = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE; test $RANK != 0 || exit $CODE"]
    for code in (0, 7):
        variables = clean_environment(CODE=str(code))
        options = ("--nproc-per-node=2", "--no-python")
        with job_at(endpoint, "2", worker, *options, run_id="mixed") as job:
            job.start(CODE=str(code))
            native = subprocess.run(
                [program, "--nnodes", "2", "--nproc", "2", "--id", "mixed",
                 "--endpoint", endpoint, *worker],
                env=variables, capture_output=True, text=True, timeout=DEADLINE_S,
            )  # fmt: skip
            (ours,) = job.finish()
        assert (native.returncode, ours.returncode) == (code, code), native.stderr + ours.stderr
        if code == 0:
            output = native.stdout.splitlines() + ours.stdout.splitlines()
            assert sorted(output) == [f"rank {rank} of 4" for rank in range(4)]
