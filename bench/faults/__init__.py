"""A fault campaign: what launchers do when a job's processes, hosts and network fail.

python -m bench.faults --launcher torchrun --launcher elastic-launch [--scene NAME ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1]
ROOT = BENCH.parent
# The modules that examples and the other benchmarks share.
for _folder in (BENCH, ROOT / "examples"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
