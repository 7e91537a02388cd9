"""Forked workers with real torch: data loaders with processes of their own, and torch.compile.

``ELASTIC_INDUCTOR=1 python -m pytest tests/python/with_torch/test_warm_torch.py`` compiles by
inductor, too, which takes minutes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.launching import clean_environment, launch

SCRIPT = """
import os, sys
if __name__ == "__main__":  # not in a spawned process
    assert "torch" in sys.modules, "executed"
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):  # of __main__, so that a spawned process imports this file
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.tensor([index * index, os.getpid()])

def load(context, workers):
    loader = DataLoader(Squares(), batch_size=4, num_workers=workers,
                        multiprocessing_context=context)
    rows = torch.cat(list(loader))
    assert rows[:, 0].tolist() == [index * index for index in range(24)], rows
    pids = set(rows[:, 1].tolist())
    assert len(pids) == workers and os.getpid() not in pids, pids
    sys.stdout.write(f"loaded by {context}\\n")  # one write: both ranks share the pipe

def compile_for(backend):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(16, 8)
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    found = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)
    sys.stdout.write(f"compiled by {backend}\\n")

if __name__ == "__main__":
    for what in sys.argv[1:]:
        rank, kind, value = what.split(":")
        if rank == os.environ["RANK"]:
            compile_for(value) if kind == "compile" else load(value, 2 if value == "fork" else 1)
"""


def run(tmp_path: Path, *what: str) -> list[str]:
    """The lines of two forked workers."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = clean_environment(TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    done = launch("--standalone", "--nproc-per-node=2", "--warm", "--start-timeout=240",
                  str(script), *what, environ=environ)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return sorted(done.stdout.splitlines())


def test_loaders_with_processes_and_a_compiled_model(tmp_path: Path) -> None:
    work = ["0:compile:eager", "1:load:fork", "1:load:spawn"]
    assert run(tmp_path, *work) == ["compiled by eager", "loaded by fork", "loaded by spawn"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler of C++")
@pytest.mark.skipif("ELASTIC_INDUCTOR" not in os.environ, reason="ELASTIC_INDUCTOR is not set")
def test_models_compiled_by_aot_autograd_and_inductor(tmp_path: Path) -> None:
    found = run(tmp_path, "0:compile:aot_eager", "1:compile:inductor")
    assert found == ["compiled by aot_eager", "compiled by inductor"]
