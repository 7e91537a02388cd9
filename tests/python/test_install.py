"""The C++ library as others use it: installed, found by CMake, linked, run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from launching import DEADLINE_S, Job, clean_environment, free_endpoint

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("shared", ["OFF", "ON"], ids=["static", "shared"])
def test_foreign_project_finds_links_and_runs_elastic(shared: str, tmp_path: Path) -> None:
    build, prefix, consumer = tmp_path / "build", tmp_path / "prefix", tmp_path / "consumer"
    run(
        "cmake", "-G", "Ninja", "-S", ROOT, "-B", build,
        f"-DBUILD_SHARED_LIBS={shared}", "-DELASTIC_BUILD_TESTS=OFF", "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DCMAKE_INSTALL_PREFIX={prefix}",
    )  # fmt: skip
    run("cmake", "--build", build)
    run("cmake", "--install", build)
    build.rename(tmp_path / "build-moved-away")  # nothing may point back into the build

    run(
        "cmake", "-G", "Ninja", "-S", ROOT / "tests/install", "-B", consumer,
        f"-DCMAKE_PREFIX_PATH={prefix}",
    )  # fmt: skip
    run("cmake", "--build", consumer)
    assert "works" in run(consumer / "consumer")

    example = tmp_path / "example"
    run(
        "cmake", "-G", "Ninja", "-S", ROOT / "examples/cpp_launcher", "-B", example,
        f"-DCMAKE_PREFIX_PATH={prefix}",
    )  # fmt: skip
    run("cmake", "--build", example)
    check_launcher(example / "cpp_launcher")


def check_launcher(program: Path) -> None:
    """The example has no Python in it, and makes one job with an agent that has."""
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
            said = native.stdout.splitlines() + ours.stdout.splitlines()
            assert sorted(said) == [f"rank {rank} of 4" for rank in range(4)]
