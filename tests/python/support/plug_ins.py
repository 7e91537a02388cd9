"""A third-party rendezvous handler, and how tests install it."""

from __future__ import annotations

import shutil
from pathlib import Path

from elastic import StoreServer

from support.launching import python_path
from support.paths import STUBS


def plug_in(folder: Path) -> str:
    """A PYTHONPATH on which the handler's distribution is installed."""
    shutil.copy(STUBS / "stub_handler_plug_in.py", folder)
    return install(folder, "torchrun.handlers", counting="stub_handler_plug_in:make")


def install(folder: Path, group: str, **entry_points: str) -> str:
    """A PYTHONPATH with a distribution in the folder that has these entry points."""
    facts = folder / "plugged-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
    lines = [f"[{group}]", *(f"{name} = {where}" for name, where in entry_points.items()), ""]
    (facts / "entry_points.txt").write_text("\n".join(lines))
    return python_path(folder)


def options(server: StoreServer, *more: str, nodes: int = 2) -> list[str]:
    return [f"--nnodes={nodes}", "--nproc-per-node=2", "--rdzv-backend=counting", "--rdzv-id=job",
            f"--rdzv-endpoint={server.host}:{server.port}", *more]  # fmt: skip
