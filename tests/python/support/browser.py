"""A real browser for tests: Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")


class Page:
    """A page, and the errors that it logged."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.errors: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message: dict[str, Any] = await self._socket.receive_json(timeout=120)
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(str(message["params"]))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    async def evaluate(self, expression: str) -> Any:
        got = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    async def look_like(self, width: int, scheme: str) -> None:
        """The width of the window, and the colour scheme that its user prefers."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)

    async def wait_for(self, condition: str) -> None:
        """Waits until the expression is true; it is evaluated after each change of the document."""
        await self.evaluate(
            "new Promise(done => { const check = () => { if (" + condition + ") done(true); };"
            "new MutationObserver(check).observe(document,"
            " {subtree: true, childList: true, characterData: true, attributes: true}); check(); })"
        )


@asynccontextmanager
async def opened(url: str, profile: Path) -> AsyncIterator[Page]:
    """The page at ``url`` in a new browser, which is killed at the end."""
    assert PROGRAM is not None
    process = subprocess.Popen(
        [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        marker = "DevTools listening on ws://"
        line = next(line for line in process.stderr if marker in line)
        address = line.strip().removeprefix(marker).partition("/")[0]
        async with aiohttp.ClientSession() as client:
            async with client.put(f"http://{address}/json/new?about:blank") as reply:
                target = await reply.json()
            async with client.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Runtime", "Log", "Page"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url)
                await page.wait_for("document.readyState === 'complete'")
                yield page
    finally:
        process.kill()
        process.communicate()
