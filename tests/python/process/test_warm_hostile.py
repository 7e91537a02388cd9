"""Jobs whose preloaded modules do harm at import: all workers run, and the module is named.

``ELASTIC_HOSTILE_PRELOADS=200 python -m pytest tests/python/process/test_warm_hostile.py`` tries so
many combinations of what such modules do.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from support.launching import launch
from support.warm_modules import CRASHING, HOSTILE, SCRIPT, lines_of

COMBINATIONS = int(os.environ.get("ELASTIC_HOSTILE_PRELOADS", "2"))
SLOW = "from time import sleep\nsleep(600)"
HARMLESS = ("json", "decimal", "fractions", "html", "wave")


@pytest.mark.parametrize("turn", range(COMBINATIONS))
def test_hostile_preloads_are_named_and_the_workers_executed(turn: int, tmp_path: Path) -> None:
    chance = random.Random(turn)
    # A module that ends the process, or takes too long, does nothing after that.
    last = chance.choice([*CRASHING, SLOW, *HOSTILE])
    sources = [*chance.sample(sorted(HOSTILE), chance.randrange(3)), last]
    text = "\n".join(sources)
    name = chance.choice(["hostile", "package.hostile"])
    file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    if name != "hostile":
        (file.parent / "__init__.py").touch()
    file.write_text(text + "\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    modules = ["colorsys", *chance.sample(HARMLESS, chance.randrange(3))]
    modules.insert(chance.randrange(len(modules) + 1), name)
    ranks = chance.randrange(2, 5)
    done = launch(
        *("--standalone", f"--nproc-per-node={ranks}", f"--preload={','.join(modules)}"),
        *("--start-timeout=10" if SLOW in sources else "--start-timeout=60", "script.py"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, (modules, text, done.stderr)
    # Only a forked worker has colorsys.
    started = [line.split(" ", 1) for line in lines_of(done)]
    assert sorted(line[1] for line in started) == [f"rank {rank} round 0" for rank in range(ranks)]
    assert {line[0] for line in started} == {"executed"}, (modules, text, done.stderr)
    assert name in done.stderr, (modules, text, done.stderr)
