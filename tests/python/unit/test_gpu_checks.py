"""``python -m bench.gpu`` where no GPU is; bench/gpu/README.md has what it saw where one is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bench.gpu import checks  # noqa: E402
from bench.gpu.__main__ import main  # noqa: E402


def test_without_a_gpu_it_says_so_and_exits_with_its_own_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU here: python -m bench.gpu would check it")
    assert main([]) == 5
    assert capsys.readouterr().err == "bench.gpu: nothing was checked: torch sees no GPU\n"


def test_the_outcome_of_each_check_is_a_row_and_a_failure_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(machine: checks.Machine) -> str:
        raise checks.Failed(f"{machine.devices} | sums\nare wrong")

    def lacks(machine: checks.Machine) -> str:
        raise checks.Skipped("no NUMA nodes")

    monkeypatch.setattr("bench.gpu.__main__._look", lambda: ("", 3, "3 x GPU"))
    found = {"sum": ("a sum", fails), "numa": ("binding", lacks), "warm": ("warm", lambda _: "1 s")}
    monkeypatch.setattr("bench.gpu.__main__.CHECKS", found)
    assert main([]) == 1
    assert capsys.readouterr().out.splitlines()[4:] == [
        "| a sum | **failed** | 3 / sums are wrong |",
        "| binding | skipped | no NUMA nodes |",
        "| warm | ok | 1 s |",
    ]
    found.pop("sum")
    assert main([]) == 0
