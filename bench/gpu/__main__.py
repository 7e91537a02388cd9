"""Runs the checks that need a GPU, and prints what was seen.

    python -m bench.gpu
    python -m bench.gpu --check restart --check hang

Needs torch with CUDA and an installed elastic. Uses all GPUs of this machine; with one, two or
three ranks share it. Exit code: 0 all checks passed or were skipped for a reason that is printed;
1 one failed; 5 nothing was checked, because torch sees no GPU.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Sequence

from bench.gpu.checks import CHECKS, Failed, Machine, Skipped

NO_GPU = 5


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        "python -m bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="append", choices=list(CHECKS), help="repeatable")
    given = parser.parse_args(argv)
    why_not, devices, facts = _look()
    if why_not:
        print(f"bench.gpu: nothing was checked: {why_not}", file=sys.stderr)
        return NO_GPU
    print(f"{facts}\n\n| check | | what was seen |\n|---|---|---|", flush=True)
    machine = Machine([sys.executable, "-m", "elastic"], devices)
    failures = 0
    for name in given.check or CHECKS:
        what, check = CHECKS[name]
        try:
            outcome, text = "ok", check(machine)
        except Skipped as why:
            outcome, text = "skipped", str(why)
        except Failed as why:
            outcome, text = "**failed**", str(why)
            failures += 1
        print(f"| {what} | {outcome} | {_in_a_cell(text)} |", flush=True)
    return 1 if failures else 0


def _look() -> tuple[str, int, str]:
    try:
        import elastic
        import torch
    except ImportError as error:
        return str(error), 0, ""
    if not torch.cuda.is_available():
        return "torch sees no GPU", 0, ""
    names = sorted({torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())})
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
        driver = done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        driver = "unknown"
    facts = (
        f"{torch.cuda.device_count()} x {', '.join(names)}, driver {driver}, torch "
        f"{torch.__version__}, NCCL {nccl}, Python {platform.python_version()}, elastic "
        f"{elastic.__version__}, Linux {platform.release()}"
    )
    return "", torch.cuda.device_count(), facts


def _in_a_cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


if __name__ == "__main__":
    sys.exit(main())
