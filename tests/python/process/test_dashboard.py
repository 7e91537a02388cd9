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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.launching import Job, clean_environment, free_endpoint, launch, launcher_command

pytest.importorskip("aiohttp")
from support import browser

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
