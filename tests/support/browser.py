"""A real headless Chromium for tests, driven over its DevTools protocol with aiohttp.

Guarantees: the browser has a profile of its own, may reach loopback only, and is ended with the
test; what the console says and every request are kept. Does not do: install anything.
"""

import asyncio
import base64
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    # Nothing but this machine exists, whatever a page would like to load.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
_START_S = 120.0
_ANSWER_S = 120.0


def find_browser() -> str | None:
    """The browser's program, if one is installed."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Tab:
    """One page. Every method waits for the browser's answer, never for a time."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.console: list[str] = []
        """Errors and exceptions."""
        self.requests: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            else:
                self._note(event["method"], event["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.console.append(str(params["args"]))

    async def call(self, method: str, **params: object) -> dict[str, Any]:
        """One DevTools command."""
        number = self._number = self._number + 1
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(_ANSWER_S):
            event = await answer
        assert "error" not in event, (method, event["error"])
        result: dict[str, Any] = event["result"]
        return result

    async def open(self, url: str) -> None:
        """Goes to a page, with console and network watched from the beginning."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:  # whatever the script gives
        """The value of a JavaScript expression; promises are awaited."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        """Waits until a JavaScript expression holds, looking after every change of the page."""
        await self.value(
            f"""new Promise((done, fail) => {{
                const look = () => {{
                    try {{ return !!({condition}); }} catch {{ return false; }}
                }};
                if (look()) return done(true);
                const watch = new MutationObserver(() => {{
                    if (look()) {{ watch.disconnect(); done(true); }}
                }});
                watch.observe(document, {{
                    subtree: true, childList: true, attributes: true, characterData: true
                }});
                setTimeout(() => fail(new Error("never")), 100000);
            }})"""
        )

    async def show(self, *, width: int, theme: str, height: int = 900) -> None:
        """Sets the window's size and the colour scheme, "light" or "dark", and waits for it."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        await self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": theme}],
        )
        await self.value("new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))")

    async def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))

    async def close(self) -> None:
        """Ends the connection."""
        await self._socket.close()
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading


@asynccontextmanager
async def open_tab(program: str) -> AsyncIterator[Tab]:
    """A browser with one empty page, for as long as the block runs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program, *_FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            port = await _port(Path(profile) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession(trust_env=False) as session:
                address = f"http://127.0.0.1:{port}/json/list"
                async with session.get(address) as answer:
                    pages = [p for p in await answer.json() if p["type"] == "page"]
                url = pages[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    try:
                        yield tab
                    finally:
                        await tab.close()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    """The browser writes the port that it chose into its profile."""
    async with asyncio.timeout(_START_S):
        while not (file.exists() and (lines := file.read_text().split())):  # noqa: ASYNC240  # a line
            assert process.returncode is None, "the browser ended at once"
            await asyncio.sleep(0.05)
    return int(lines[0])
