"""``elastic-launch dashboard`` over HTTP and in a real browser."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.launching import Job, clean_environment, free_endpoint, launch, launcher_command

pytest.importorskip("aiohttp")
from aiohttp import web
from elastic.cli import dashboard

from support import browser
from support.snapshots import snapshot

WORKER = ["--no-python", "/bin/sh", "-c", "echo $RANK; exec sleep 1000"]


@pytest.fixture
def endpoint() -> str:
    return free_endpoint()


@pytest.fixture
def job(endpoint: str) -> Iterator[Job]:
    options = [
        *("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"),
        *("--rdzv-id=<b>job", "--nproc-per-node=2", "--max-restarts=1"),
    ]
    with Job(options, WORKER) as running:
        running.start_nodes(2, lines=2)
        yield running


@contextmanager
def served(endpoint: str) -> Iterator[str]:
    """The address of a dashboard for this endpoint."""
    process = subprocess.Popen(
        launcher_command("dashboard", endpoint, "--bind=127.0.0.1:0"),
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stderr.readline()
        assert line.startswith("elastic-launch dashboard: http://127.0.0.1:"), line
        yield line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def events(url: str) -> Iterator[tuple[str, Any]]:
    with urllib.request.urlopen(f"{url}events", timeout=120) as stream:
        kind = ""
        for line in stream:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)


def first_job(url: str) -> dict[str, Any]:
    """The first snapshot in which every worker runs."""
    for kind, data in events(url):
        if kind == "job" and len(data["nodes"]) == 2 and all(
            node["workers"] and all(one["state"] == "running" for one in node["workers"])
            for node in data["nodes"]
        ):  # fmt: skip
            found: dict[str, Any] = data
            return found
    raise AssertionError("the stream ended")


def test_the_page_receives_the_job_and_its_changes(job: Job, endpoint: str) -> None:
    with served(endpoint) as url:
        shown = first_job(url)
        assert (shown["phase"], shown["round"], shown["world_size"]) == ("running", 0, 4)
        with urllib.request.urlopen(f"{url}status", timeout=60) as reply:
            assert json.load(reply)["job"] == "<b>job"
        with urllib.request.urlopen(url, timeout=60) as reply:
            assert reply.headers["Content-Security-Policy"].startswith("default-src 'self'")
            assert "<h1" in reply.read().decode()
        stream = events(url)
        os.kill(shown["nodes"][0]["workers"][0]["pid"], signal.SIGKILL)
        while True:
            kind, data = next(stream)
            if kind == "job" and data["round"] == 1:
                break
        assert data["rounds"][0]["cause"] == "worker_failed"


def test_a_foreign_host_name_and_an_unknown_file_are_refused(endpoint: str) -> None:
    with served(endpoint) as url:
        for request, code in (
            (urllib.request.Request(url, headers={"Host": "evil.example"}), 403),
            (urllib.request.Request(f"{url}dashboard.py"), 404),
            (urllib.request.Request(f"{url}status"), 503),  # nothing listens at the endpoint
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=60)
            assert caught.value.code == code
            caught.value.close()


def test_an_address_that_cannot_be_bound_is_one_sentence(endpoint: str) -> None:
    done = launch("dashboard", endpoint, "--bind=192.0.2.1:80")
    assert done.returncode == 2
    assert "--bind 192.0.2.1:80" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium is installed")
def test_a_browser_shows_the_job_and_a_restart(job: Job, endpoint: str, tmp_path: Path) -> None:
    text = "document.body.innerText"

    async def look(url: str) -> None:
        async with browser.opened(url, tmp_path / "profile") as page:
            await page.wait_for("document.querySelectorAll('.chip.running').length === 4")
            # A name with markup is text.
            heading = await page.evaluate("document.querySelector('h1').textContent")
            assert heading == "job <b>job"
            assert await page.evaluate("document.querySelectorAll('h1 b').length") == 0
            assert await page.evaluate("document.querySelectorAll('#timeline .round').length") == 1
            assert "Incidents\n\nnone" in await page.evaluate(text)
            os.kill(victim, signal.SIGKILL)
            await page.wait_for("document.querySelectorAll('#timeline .round').length === 2")
            await page.wait_for("document.querySelectorAll('.chip.running').length === 4")
            assert await page.evaluate("document.querySelectorAll('#timeline .gap').length") == 1
            shown = await page.evaluate(text)
            assert "worker failed" in shown
            assert "SIGKILL" in shown
            assert "1 of 1" in shown
            assert page.errors == []
            folder = os.environ.get("ELASTIC_TEST_SCREENSHOTS")
            if folder:
                picture = await page.call("Page.captureScreenshot", captureBeyondViewport=True)
                Path(folder, "dashboard.png").write_bytes(base64.b64decode(picture["data"]))

    with served(endpoint) as url:
        victim = first_job(url)["nodes"][1]["workers"][1]["pid"]
        asyncio.run(look(url))


@asynccontextmanager
async def showing(job: dict[str, Any], profile: Path) -> AsyncIterator[browser.Page]:
    """A browser at the page of a job that nobody runs."""
    feed = dashboard.Feed()
    await feed.publish("job", job)
    runner = web.AppRunner(dashboard.application(feed, None), shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        port = runner.addresses[0][1]
        async with browser.opened(f"http://127.0.0.1:{port}/", profile) as page:
            await page.wait_for("document.querySelector('#ranks').children.length > 0")
            yield page
            assert page.errors == []
    finally:
        await runner.cleanup()


HANG = {"idle_seconds": 95.0, "step": 83412, "rank": 1, "place": "in read_bytes (hang.py:26)"}


@pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium is installed")
@pytest.mark.parametrize("ranks", [2, 64, 4096])
def test_the_page_is_readable_at_each_size(ranks: int, tmp_path: Path) -> None:
    job = snapshot(ranks, hang=HANG)
    job["nodes"][-1]["connected"] = False

    async def look() -> None:
        async with showing(job, tmp_path / "profile") as page:
            for width, scheme in ((1280, "light"), (420, "dark")):
                await page.look_like(width, scheme)
                # Nothing is cut off, and the page has an end.
                inside = "document.documentElement.scrollWidth <= window.innerWidth"
                assert await page.evaluate(inside), width
                assert await page.evaluate("document.body.scrollHeight") < 20 * 900
                background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (
                    background == {"light": "rgb(252, 252, 253)", "dark": "rgb(17, 17, 19)"}[scheme]
                )
            assert await page.evaluate("document.querySelector('#ranks').children.length") == ranks
            counts = await page.evaluate("document.querySelector('#counts').innerText")
            assert counts.split() == [str(ranks - 1), "running", "1", "hung"]
            title = await page.evaluate("document.querySelector('#ranks .hung').title")
            assert title.startswith("rank 1: hung, pid 1001 on gpu-node-0000")
            text = await page.evaluate("document.body.innerText")
            assert "no rank has made progress for 1 min 35 s" in text
            assert "steps/s" not in text, "the pace of before the hang"
            # The nodes that are not as usual come first.
            rows = "document.querySelector('#nodes').tBodies[0].rows"
            assert await page.evaluate(f"{rows}.length") == min(16, len(job["nodes"]))
            assert await page.evaluate("document.querySelectorAll('.disconnected').length") == 1
            assert await page.evaluate("document.querySelector('#all-nodes').hidden") == (
                len(job["nodes"]) <= 16
            )
            await page.evaluate("document.querySelector('#all-nodes').click()")
            assert await page.evaluate(f"{rows}.length") == len(job["nodes"])

    asyncio.run(look())


@pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium is installed")
def test_the_page_says_how_fast_a_job_trains_and_who_lags(tmp_path: Path) -> None:
    lagging = {"rank": 9, "node": "gpu-node-0001_701", "step": 83390, "idle_seconds": 12.2}
    job = snapshot(64, stragglers=[lagging])

    async def look() -> None:
        async with showing(job, tmp_path / "profile") as page:
            text = await page.evaluate("document.body.innerText")
            for part in (
                "83412, slowest at 83411", "3.11 steps/s", "322 ms", "97.9 %", "8 nodes",
                "rank 9 on gpu-node-0001_701: at step 83390, no progress for 12.2 s",
                "54.1 s",  # without training after the failure
            ):  # fmt: skip
                assert part in text, part
            assert (
                await page.evaluate("document.querySelector('#ranks .straggling').innerText") == "9"
            )

    asyncio.run(look())
