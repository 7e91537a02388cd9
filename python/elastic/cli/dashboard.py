"""``elastic-launch dashboard``: one web page with the state of a running job.

The page receives snapshots as server-sent events. It changes nothing in the job, has no cookies and
loads nothing from other sites. On loopback it can request the stacks of the workers.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from elastic.cli import dashboard_view, local_jobs, stacks, subcommands
from elastic.cli.options import PROGRAM
from elastic.errors import ConfigError, RendezvousError
from elastic.text import is_loopback, join_endpoints, split_endpoint

try:
    from aiohttp import web
except ImportError:
    web = None

DEFAULT_BIND = "127.0.0.1:8265"
CONNECT_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 1.0
SECRET_BYTES = 16  # of the address: other users of the host must not see the job
# A snapshot at least this often, so that the times since the last messages stay current.
KEEP_ALIVE_S = 15.0
STACKS_TIMEOUT_S = 5.0
# All pages get the stacks of one request for this long; a coordinator collects them as often.
STACKS_PAUSE_S = 10.0

_FILES = Path(__file__).parent / "web"
_TYPES = {
    "index.html": "text/html",
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def parser() -> argparse.ArgumentParser:
    made = subcommands.Parser(
        prog=f"{PROGRAM} dashboard",
        description="Serves a web page with the rounds, incidents, nodes and ranks of a running "
        "job. It cannot change the job; on loopback it can show the stacks of the workers.",
    )
    subcommands.add_job(made)
    made.add_argument(
        "--bind",
        metavar="HOST:PORT",
        default=DEFAULT_BIND,
        help=f"where to serve the page (default {DEFAULT_BIND}; port 0: a free one). Who has the "
        "whole address that is printed can see the job; it contains a random secret, and is not "
        "encrypted on its way",
    )
    return made


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if web is None:
        raise ConfigError(
            "the dashboard needs the package aiohttp: pip install 'elastic-launch[dashboard]'"
        )
    host, port = split_endpoint(options.bind, "--bind")
    hint = ""
    try:
        hint = local_jobs.locate(options)
        if hint not in ("", local_jobs.MOVED):  # perhaps the name of a host
            with local_jobs.connect(options) as job:
                job.next(CONNECT_TIMEOUT_S)
        asyncio.run(_serve(options, host, int(port or 0)))
    except RendezvousError as error:
        return subcommands.report("dashboard", error, hint)
    except OSError as error:
        raise ConfigError(f"--bind {options.bind}: {error.strerror or error}") from error
    return 0


class Feed:
    """The newest snapshot of the job, or why there is none, for all connected pages."""

    def __init__(self) -> None:
        self.kind = "lost"
        self.data: Any = "connecting to the job's coordinator"
        self._changed = asyncio.Condition()
        self._number = 0
        self._message = b""  # of this publication; "": no page has asked for it yet

    async def publish(self, kind: str, data: Any) -> None:
        async with self._changed:
            self.kind, self.data, self._message = kind, data, b""
            self._number += 1
            self._changed.notify_all()

    async def next(self, seen: int) -> int:
        """The number of a publication after ``seen``."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._number != seen)
            return self._number

    def message(self) -> bytes:
        """For the pages: a snapshot, and as ``page`` what they show of it."""
        if not self._message:
            data = self.data
            if self.kind == "job":
                data = data | {"page": dashboard_view.page(data)}
            self._message = f"event: {self.kind}\ndata: {json.dumps(data)}\n\n".encode()
        return self._message


class Stacks:
    """The stacks of the job's workers; all pages share one request at a time."""

    def __init__(self, fetch: Callable[[], str], clock: Callable[[], float]) -> None:
        self._fetch, self._clock = fetch, clock
        self._request: asyncio.Task[str] | None = None
        self._begun = 0.0

    async def text(self) -> str:
        """Raises RendezvousError if the job does not reply."""
        last = self._request
        if last is None or (last.done() and (last.exception() is not None or self._is_old())):
            self._begun = self._clock()
            last = self._request = asyncio.create_task(asyncio.to_thread(self._fetch))
        return await asyncio.shield(last)

    def _is_old(self) -> bool:
        return self._clock() - self._begun >= STACKS_PAUSE_S


async def observe_job(feed: Feed, options: argparse.Namespace) -> None:
    """Follows the job for ever; looks for its coordinator again after it was lost."""
    last: dict[str, Any] = {}
    while True:
        try:
            # In a thread: the store that names a coordinator may not answer.
            job = await asyncio.to_thread(local_jobs.connect, options)
            try:
                while True:
                    snapshot = await asyncio.to_thread(job.next, 1.0)
                    if snapshot is not None:
                        last = snapshot
                        await feed.publish("job", snapshot)
            finally:
                await asyncio.to_thread(job.close)
        except RendezvousError as error:
            if feed.kind != "job" or feed.data["result"] is None:
                await feed.publish("lost", str(error))
        await asyncio.sleep(RETRY_PAUSE_S)
        if last:
            await asyncio.to_thread(local_jobs.locate_again, options, last)


def application(
    feed: Feed,
    allowed_hosts: frozenset[str] | None,
    job_stacks: Stacks | None = None,
    secret: str = "",
) -> web.Application:
    """``allowed_hosts``: the host names of requests; None: any. See ``check``.

    ``job_stacks``: None: the page cannot request stacks. ``secret``: the first part of all paths.
    A cookie would also be sent to servers of other users at other ports of the address.
    """
    prefix = f"/{secret}" if secret else ""

    async def check(request: web.Request, handler: Any) -> web.StreamResponse:
        """A foreign page whose name was pointed at this address (DNS rebinding) sees nothing."""
        if allowed_hosts is not None and request.url.host not in allowed_hosts:
            raise web.HTTPForbidden(text="unknown host name\n")
        given = request.path.split("/")[1].encode(errors="surrogateescape")
        if secret and not hmac.compare_digest(given, secret.encode()):
            text = f"open the whole address that {PROGRAM} dashboard has printed\n"
            raise web.HTTPForbidden(text=text)
        response: web.StreamResponse = await handler(request)
        return response

    async def file(request: web.Request) -> web.Response:
        name = request.match_info.get("name") or "index.html"
        if name not in _TYPES:
            raise web.HTTPNotFound
        return web.Response(
            body=(_FILES / name).read_bytes(), content_type=_TYPES[name], charset="utf-8",
            headers=_HEADERS,
        )  # fmt: skip

    async def status(_: web.Request) -> web.Response:
        code = 200 if feed.kind == "job" else 503
        body = feed.data if feed.kind == "job" else {"error": feed.data}
        return web.json_response(body, status=code, headers=_HEADERS)

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"}
        )
        await response.prepare(request)
        seen = -1
        try:
            while True:
                try:
                    seen = await asyncio.wait_for(feed.next(seen), KEEP_ALIVE_S)
                    await response.write(feed.message())
                except asyncio.TimeoutError:
                    await response.write(b": alive\n\n")
        except (ConnectionError, asyncio.CancelledError):
            return response

    async def collect(request: web.Request) -> web.Response:
        """Requires a header that a page of another site cannot set without a preflight request."""
        if job_stacks is None:
            text = f"only on loopback; run {PROGRAM} stacks"
            return web.Response(text=text, status=403, headers=_HEADERS)
        if request.headers.get("X-Elastic") != "stacks":
            raise web.HTTPForbidden(text="not from the page of this dashboard\n")
        try:
            return web.Response(text=await job_stacks.text(), headers=_HEADERS)
        except RendezvousError as error:
            return web.Response(text=str(error), status=503, headers=_HEADERS)

    made = web.Application(middlewares=[web.middleware(check)])
    made.router.add_get(f"{prefix}/", file)
    made.router.add_get(f"{prefix}/status", status)
    made.router.add_get(f"{prefix}/events", events)
    made.router.add_post(f"{prefix}/stacks", collect)
    made.router.add_get(f"{prefix}/{{name}}", file)
    return made


async def _serve(options: argparse.Namespace, host: str, port: int) -> None:
    feed = Feed()
    allowed, offered = None, None
    if is_loopback(host):
        allowed = frozenset({host, "localhost", "127.0.0.1", "::1"})
        offered = Stacks(lambda: stacks.fetch(options, STACKS_TIMEOUT_S), time.monotonic)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    made = application(feed, allowed, offered, secret)
    runner = web.AppRunner(made, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    shown = join_endpoints([(host, runner.addresses[0][1])])
    print(f"{PROGRAM} dashboard: http://{shown}/{secret}/", file=sys.stderr, flush=True)
    try:
        await observe_job(feed, options)
    finally:
        await runner.cleanup()
