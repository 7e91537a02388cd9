"""``elastic-launch dashboard`` over HTTP and in a real browser."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.launching import DEADLINE_S, Job, free_endpoint, launch, shell_job

pytest.importorskip("aiohttp")
from aiohttp import test_utils, web
from elastic.cli import dashboard
from elastic.errors import RendezvousUnavailable

from support import browser
from support.dashboards import events, served
from support.snapshots import snapshot

WORKER = "echo $RANK; echo worker $RANK >&2; exec sleep 1000"


@pytest.fixture
def endpoint() -> str:
    return free_endpoint()


@pytest.fixture
def job(endpoint: str) -> Iterator[Job]:
    options = ("--nproc-per-node=2", "--max-restarts=1")
    with shell_job(endpoint, "2", WORKER, *options, run_id="<b>job") as running:
        running.start_nodes(2, lines=2)
        yield running


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
        # The failure that ends the job has the last lines of the worker.
        os.kill(first_job(url)["nodes"][0]["workers"][0]["pid"], signal.SIGKILL)
        while data["result"] is None:
            kind, data = next(stream)
        evidence = data["result"]["evidence"]
        assert (evidence["output"], evidence["cause"]) == ("worker 0", "signal")


def test_a_foreign_host_name_and_an_unknown_file_are_refused(endpoint: str) -> None:
    with served(endpoint) as url:
        for request, code in (
            (urllib.request.Request(url, headers={"Host": "evil.example"}), 403),
            (urllib.request.Request(f"{url}dashboard.py"), 404),
            (urllib.request.Request(url[: url.index("/", 8)] + "/status"), 403),  # no secret
            (urllib.request.Request(url[: url.index("/", 8)]), 403),
            (urllib.request.Request(f"{url}status"), 503),  # nothing listens at the endpoint
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=60)
            assert caught.value.code == code
            caught.value.close()


def test_a_job_that_is_not_there_is_an_error() -> None:
    done = launch("dashboard", "no-such-job.invalid", "--bind=127.0.0.1:0")
    assert done.returncode == 1
    assert "no-such-job.invalid is not a host name" in done.stderr


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
            # Stacks are collected at a click, and the job continues.
            await page.evaluate("document.querySelector('#collect').click()")
            await page.wait_for("!document.querySelector('#stacks-text').hidden")
            stacks = await page.evaluate("document.querySelector('#stacks-text').textContent")
            assert "4 ranks (0-3)" in stacks
            assert await page.evaluate("document.querySelectorAll('.chip.running').length") == 4
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
async def showing(
    job: dict[str, Any], profile: Path, feed: dashboard.Feed | None = None
) -> AsyncIterator[browser.Page]:
    """A browser at the page of a job that does not exist."""
    feed = feed or dashboard.Feed()
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
                height = "document.querySelector('#goodput').getBoundingClientRect().height"
                assert await page.evaluate(height) > 40
                assert await page.evaluate("document.body.scrollHeight") < 20 * 900
                background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (
                    background == {"light": "rgb(252, 252, 253)", "dark": "rgb(17, 17, 19)"}[scheme]
                )
            assert await page.evaluate("document.querySelector('#ranks').children.length") == ranks
            bars = "[...document.querySelectorAll('#goodput rect')]"
            shares = await page.evaluate(f"{bars}.map(one => one.textContent.split(': ')[1])")
            assert len(shares) == 60, "two hours in parts of two minutes"
            assert shares[0] == "58.3 %", "50 of 120 s until the first step"
            assert (shares[1], shares[-1]) == ("100.0 %", "20.8 %"), "it hangs since 95 s"
            text = await page.evaluate("document.querySelector('#goodput-legend').innerText")
            assert "each 2 min in" in text and "now 97.9 %" in text
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
                "83412, slowest rank at 83411", "3.11 steps/s", "322 ms", "97.9 %", "8 nodes",
                "rank 9 on gpu-node-0001_701: at step 83390, no progress for 12.2 s",
                "54.1 s",  # without training after the failure
            ):  # fmt: skip
                assert part in text, part
            assert (
                await page.evaluate("document.querySelector('#ranks .straggling').innerText") == "9"
            )

    asyncio.run(look())


@pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium is installed")
def test_the_page_names_excluded_hosts_and_what_was_found(tmp_path: Path) -> None:
    job = snapshot(
        16,
        excluded=[{"host": "n7", "until": 1e9 + 3600, "reason": "fan <b>3", "times": 2}],
        findings=[
            {"host": "n7", "text": "fan <b>3", "time": 1e9},
            {"host": "n8", "text": "check gpu: unknown: no driver", "time": 1e9},
        ],
    )

    async def look() -> None:
        async with showing(job, tmp_path / "profile") as page:
            shown = await page.evaluate("document.querySelector('#now').innerText")
            lines = [line for line in shown.splitlines() if re.search(r"\bn\d ", line)]
            assert len(lines) == 2, "why a host is excluded is no further line"
            at = r"\d\d:\d\d:\d\d"
            assert re.fullmatch(rf"found: n8 at {at}: check gpu: unknown: no driver", lines[0])
            text = rf"excluded: n7 until {at}, 2 times so far: fan <b>3"
            assert re.fullmatch(text, lines[1])

    asyncio.run(look())


def test_the_page_receives_an_exclusion(job: Job, endpoint: str) -> None:
    with served(endpoint) as url:
        host = first_job(url)["nodes"][0]["host"]
        stream = events(url)
        done = launch("exclude", endpoint, host, "--reason=fan 3")
        while True:
            kind, data = next(stream)
            if kind == "job" and data["excluded"]:
                break
    assert done.returncode == 0, done.stderr
    (excluded,) = data["excluded"]
    assert (excluded["host"], excluded["times"]) == (host, 1)
    assert excluded["reason"].endswith(": fan 3")  # after who has asked for it
    assert [one["host"] for one in data["findings"]] == [host]


@pytest.mark.skipif(browser.PROGRAM is None, reason="no chromium is installed")
def test_the_page_reports_each_failure(tmp_path: Path) -> None:
    job = snapshot(16)
    result = {
        "outcome": "failed", "cause": "worker", "exit_code": 137, "rank": 3,
        "node": "gpu-node-0000_700", "message": "rank 3 killed by signal 9", "lost": [],
        "evidence": {"host": "gpu-node-0000", "time": 1e9, "class": "platform",
                     "cause": "out of memory", "error": None, "hint": "the <b>limit",
                     "output": "loss 0.25\n<b>Killed"},
    }  # fmt: skip
    report = "document.querySelector('#incidents details')"

    async def look() -> None:
        feed = dashboard.Feed()
        async with showing(job, tmp_path / "profile", feed) as page:
            assert await page.evaluate(f"{report}.open") is False
            await page.evaluate(f"{report}.querySelector('summary').click()")
            await page.wait_for(f"{report}.open")
            text = await page.evaluate(f"{report}.innerText")
            for part in ("Rank\n1", "Exit code\n1", "57 min 30 s", "not sent to observers"):
                assert part in text, part
            # It stays open when the job changes.
            await feed.publish("job", job | {"result": result, "phase": "closed"})
            await page.wait_for("!document.querySelector('#failure').hidden")
            assert await page.evaluate(f"{report}.open") is True
            shown = await page.evaluate("document.querySelector('#failure').innerText")
            for part in ("platform (out of memory)", "137 (signal 9)", "the <b>limit",
                         "loss 0.25\n<b>Killed"):  # fmt: skip
                assert part in shown, part
            assert await page.evaluate("document.querySelectorAll('#failure b').length") == 0
            assert await page.evaluate("document.querySelector('#collect').offsetParent") is None

    asyncio.run(look())


def test_a_store_that_does_not_answer_delays_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, goes_on = threading.Event(), threading.Event()
    went_on = []

    def connect(_: argparse.Namespace) -> None:
        has_begun.set()
        went_on.append(goes_on.wait(DEADLINE_S))
        raise RendezvousUnavailable("the store does not answer")

    monkeypatch.setattr(dashboard.local_jobs, "connect", connect)

    async def serve() -> dashboard.Feed:
        feed = dashboard.Feed()
        following = asyncio.create_task(dashboard.observe_job(feed, argparse.Namespace()))
        await asyncio.to_thread(has_begun.wait, DEADLINE_S)
        goes_on.set()  # by the loop, which serves the pages
        await feed.next(0)
        following.cancel()
        return feed

    feed = asyncio.run(serve())
    assert went_on[0]
    assert (feed.kind, feed.data) == ("lost", "the store does not answer")


def test_stacks_are_requested_once_for_all_pages() -> None:
    now, started, requests = 0.0, threading.Event(), iter(range(9))

    def fetch() -> str:
        number = next(requests)
        started.wait(60)
        if number == 1:
            raise RendezvousUnavailable("no answer")
        return f"stacks {number}"

    async def ask() -> None:
        nonlocal now
        stacks = dashboard.Stacks(fetch, lambda: now)
        asked = [asyncio.ensure_future(stacks.text()) for _ in range(3)]
        await asyncio.sleep(0)
        started.set()
        assert await asyncio.gather(*asked) == ["stacks 0"] * 3
        now = dashboard.STACKS_PAUSE_S - 1
        assert await stacks.text() == "stacks 0"
        now += 1
        with pytest.raises(RendezvousUnavailable):
            await stacks.text()
        assert await stacks.text() == "stacks 2", "after an error there is nothing to keep"

    asyncio.run(ask())


def test_stacks_are_for_the_page_on_loopback_only() -> None:
    async def post(stacks: dashboard.Stacks | None, headers: dict[str, str]) -> tuple[int, str]:
        application = dashboard.application(dashboard.Feed(), None, stacks)
        async with test_utils.TestClient(test_utils.TestServer(application)) as client:
            reply = await client.post("/stacks", headers=headers)
            return reply.status, await reply.text()

    async def ask() -> None:
        ours, stacks = {"X-Elastic": "stacks"}, dashboard.Stacks(lambda: "all", lambda: 0.0)
        assert await post(stacks, ours) == (200, "all")
        assert (await post(stacks, {}))[0] == 403
        code, text = await post(None, ours)
        assert code == 403 and "elastic-launch stacks" in text

    asyncio.run(ask())
