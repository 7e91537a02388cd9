"""The installed C++ library: found by CMake, linked and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.installing import INSTALL_LIBRARY
from support.launching import DEADLINE_S, Job, clean_environment, free_endpoint
from support.paths import ROOT


def run(*command: str | Path, cwd: Path | None = None) -> str:
    # For ccache, if tests/run.sh has set it up: the package was built from the same files.
    environ = {**os.environ, "CCACHE_BASEDIR": str(cwd or ROOT)}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


# The machine of the test has GoogleTest; the user of the library may have none.
WITHOUT_TEST_TOOLS = "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON"


@pytest.fixture(scope="module", params=["OFF", "ON"], ids=["static", "shared"])
def prefix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The install prefix, made by the README's commands from a copy of the sources."""
    home = tmp_path_factory.mktemp("home")
    source = home / "source"
    for name in ("CMakeLists.txt", "pyproject.toml"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    for name in ("cmake", "csrc"):
        shutil.copytree(ROOT / name, source / name)
    configure, build, install = (
        command.replace("$HOME", str(home)).split() for command in INSTALL_LIBRARY
    )
    options = [WITHOUT_TEST_TOOLS, f"-DBUILD_SHARED_LIBS={request.param}"]
    run(*configure, *options, cwd=source)
    run(*build, cwd=source)
    run(*install, cwd=source)
    source.rename(home / "source-moved-away")  # nothing installed may refer to it
    return home / "elastic"


def build_against(prefix: Path, project: Path, build: Path) -> None:
    run("cmake", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)


def test_foreign_project_finds_links_and_runs_elastic(prefix: Path, tmp_path: Path) -> None:
    build_against(prefix, ROOT / "tests/install", tmp_path)
    assert "works" in run(tmp_path / "consumer")


def test_cpp_launcher_makes_one_job_with_elastic_launch(prefix: Path, tmp_path: Path) -> None:
    build_against(prefix, ROOT / "examples/cpp_launcher", tmp_path)
    check_launcher(tmp_path / "cpp_launcher")


def test_readme_snippet_compiles_and_runs(prefix: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```cpp\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (tmp_path / "snippet.cc").write_text(code)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\n"
        "project(snippet LANGUAGES CXX)\n"
        "find_package(elastic REQUIRED)\n"
        "add_executable(snippet snippet.cc)\n"
        "target_link_libraries(snippet PRIVATE elastic::elastic)\n"
    )
    build_against(prefix, tmp_path, tmp_path / "build")
    output = run(tmp_path / "build/snippet")
    assert sorted(output.split("\n"))[1:] == ["I am rank 0", "I am rank 1"]


def test_building_tests_without_their_tools_is_an_error_with_a_message(tmp_path: Path) -> None:
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path, "-DELASTIC_BUILD_TESTS=ON", WITHOUT_TEST_TOOLS],
        capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    output = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "needs GoogleTest" in output and "leave the option off" in output, output


def check_launcher(program: Path) -> None:
    """The example, which has no Python, forms one job with an agent in Python."""
    assert "python" not in run("ldd", program)
    endpoint = free_endpoint()
    worker = ["sh", "-c", "echo rank $RANK of $WORLD_SIZE; test $RANK != 0 || exit $CODE"]
    for code in (0, 7):
        variables = clean_environment(CODE=str(code))
        options = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=mixed"]
        with Job([*options, f"--rdzv-endpoint={endpoint}", "--no-python"], worker) as job:
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
