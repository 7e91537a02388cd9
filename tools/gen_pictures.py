"""Makes the pictures of docs/pictures from a real job: its dashboard, and `status` on a terminal.

python tools/gen_pictures.py [--folder docs/pictures]

Four ranks on two agents of this machine make steps together; one is killed, and later one hangs.
Needs the installed package with the extras rich and dashboard, and Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python"))

import elastic.observe  # noqa: E402
from elastic.cli import status_rich  # noqa: E402
from elastic.errors import RendezvousError  # noqa: E402

JOB = "job7"
DEADLINE_S = 300.0
WIDTH = 1000  # of the page
COLUMNS = 118  # of the terminal
STEPS = 400  # of each round, so that the time line shows more than starts

SCRIPT = """\
import os, sys, time
from pathlib import Path

from elastic import worker

folder, rank, size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def read_batch():
    if rank == 2 and (folder / "hang").exists():
        (folder / "pipe").read_bytes()
    time.sleep(0.05)


def wait_for_others(step):
    done = [folder / f"{worker.round()}.{step}.{one}" for one in range(size)]
    done[rank].touch()
    while not all(one.exists() for one in done):
        time.sleep(0.005)


step = int(os.environ["STEPS"]) * worker.round()
while True:
    read_batch()
    wait_for_others(step)
    step += 1
    worker.progress(step)
"""


@contextmanager
def job(folder: Path) -> Iterator[tuple[str, Any]]:
    """The job's endpoint, and its snapshots."""
    (folder / "train.py").write_text(SCRIPT)
    os.mkfifo(folder / "pipe")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        *(sys.executable, "-m", "elastic", "--nnodes=2", "--nproc-per-node=2", "--max-restarts=3"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={JOB}"),
        *("--hang-timeout=5", "--shutdown-timeout=1", str(folder / "train.py"), str(folder)),
    ]
    environ = os.environ | {"STEPS": str(STEPS)}
    output = (folder / "log").open("w")
    agents = [
        subprocess.Popen(command, cwd=folder, env=environ, stdout=output, stderr=output)
        for _ in range(2)
    ]
    try:
        with connected(endpoint) as seen:
            yield endpoint, seen
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait()
        output.close()


@contextmanager
def connected(endpoint: str) -> Iterator[elastic.observe.Observation]:
    """An observer, as soon as the coordinator has the job."""
    end = time.monotonic() + DEADLINE_S
    while True:
        seen = elastic.observe.connect(endpoint, JOB)
        try:
            seen.next(DEADLINE_S)
            break
        except RendezvousError:
            seen.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    with seen:
        yield seen


def wait(seen: Any, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while True:
        snapshot: dict[str, Any] | None = seen.next(DEADLINE_S)
        if snapshot is None:
            raise SystemExit(f"gen_pictures: nothing new of the job within {DEADLINE_S:g} s")
        if snapshot["result"] is not None:
            raise SystemExit(f"gen_pictures: the job ended: {snapshot['result']['message']}")
        if is_wanted(snapshot):
            return snapshot


def is_at(round_number: int, step: int) -> Callable[[dict[str, Any]], bool]:
    def check(snapshot: dict[str, Any]) -> bool:
        progress = snapshot["progress"]
        return snapshot["round"] == round_number and progress and progress["step"] >= step

    return check


def make_it_hang(seen: Any, folder: Path) -> dict[str, Any]:
    """Kills rank 3, lets the job recover, and lets rank 2 hang; the last snapshot."""
    running = wait(seen, is_at(0, STEPS))
    workers = [one for node in running["nodes"] for one in node["workers"] or []]
    os.kill(next(one["pid"] for one in workers if one["rank"] == 3), signal.SIGKILL)
    wait(seen, is_at(1, 2 * STEPS))
    (folder / "hang").touch()
    return wait(seen, lambda snapshot: bool(snapshot["hang"] and snapshot["hang"]["place"]))


def terminal(snapshot: dict[str, Any]) -> str:
    """`status` as it looks on a terminal, without the fonts that rich would load from a site."""
    from rich.console import Console

    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True,
        color_system="truecolor", highlight=False,
    )  # fmt: skip
    console.print(status_rich.render(snapshot))
    drawn = console.export_svg(title=f"elastic-launch status {snapshot['job']}", unique_id="status")
    without_fonts = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    lines = [line.rstrip() for line in without_fonts.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


async def page(endpoint: str, profile: Path) -> bytes:
    from support import browser

    command = [sys.executable, "-m", "elastic", "dashboard", endpoint, "--bind=127.0.0.1:0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        url = server.stderr.readline().split()[-1]
        async with browser.opened(url, profile) as opened:
            await opened.look_like(WIDTH, "light")
            await opened.wait_for("document.querySelector('#ranks .hung') !== null")
            await opened.evaluate("document.querySelector('#incidents summary').click()")
            await opened.evaluate("document.querySelector('#collect').click()")
            await opened.wait_for("!document.querySelector('#stacks-text').hidden")
            height = await opened.evaluate("document.documentElement.offsetHeight")
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
            shot = await opened.call(
                "Page.captureScreenshot", captureBeyondViewport=True, clip=clip
            )
            return base64.b64decode(shot["data"])
    finally:
        server.terminate()
        server.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "pictures")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory(prefix="pictures_") as name:
        work = Path(name)
        with job(work) as (endpoint, seen):
            snapshot = make_it_hang(seen, work)
            shot = asyncio.run(page(endpoint, work / "profile"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dashboard.png").write_bytes(shot)
    (folder / "status.svg").write_text(terminal(snapshot))
    return 0


if __name__ == "__main__":
    sys.exit(main())
