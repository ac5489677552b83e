"""The handlers of the page.

    GET, HEAD /              the page
              /static/NAME   its script, style and icon: a fixed list, read once
              /api/state     everything as JSON, bounded
              /events        server-sent events: `state` (everything), `change`, `heartbeat`
              /metrics       Prometheus text
              /healthz       "ok"

Guarantees: nothing but these paths; no path becomes a file name. A client of /events that does not
read for `WRITE_S` is dropped, one that the stream has no place for is told when to come again.

Does not do: headers, hosts and failures (see `guard`).
"""

import asyncio
from collections.abc import Callable
from importlib.resources import files

from aiohttp import web

from shoal.node.web.board import Board
from shoal.node.web.metrics import CONTENT_TYPE, NodeCollector, render
from shoal.node.web.stream import Client, Stream, TooManyClientsError

HEARTBEAT_S = 5.0
WRITE_S = 30.0
_RETRY_MS = 2000

_TYPES = {
    "index.html": "text/html",
    "page.js": "text/javascript",
    "charts.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}


class Pages:
    """Handlers over one board and one stream."""

    def __init__(self, board: Board, stream: Stream, flush: Callable[[], None]) -> None:
        self._board = board
        self._stream = stream
        self._flush = flush
        folder = files("shoal.node.web") / "static"
        self._static = {name: (folder / name).read_bytes() for name in _TYPES}
        first = next(iter(board.histories.values()))
        self._collector = NodeCollector(first, lambda: stream.num_clients)

    def add_routes(self, app: web.Application) -> None:
        """Registers all paths."""
        app.router.add_get("/", self.index)
        app.router.add_get("/static/{name}", self.static)
        app.router.add_get("/api/state", self.state)
        app.router.add_get("/events", self.events)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/healthz", self.healthz)

    async def index(self, _request: web.Request) -> web.StreamResponse:
        """The page."""
        return self._file("index.html")

    async def static(self, request: web.Request) -> web.StreamResponse:
        """One of the fixed files."""
        name = request.match_info["name"]
        if name not in self._static or name == "index.html":
            raise web.HTTPNotFound
        return self._file(name)

    def _file(self, name: str) -> web.Response:
        return web.Response(
            body=self._static[name],
            content_type=_TYPES[name],
            charset=None if name.endswith(".svg") else "utf-8",
            headers={"Cache-Control": "no-cache"},
        )

    async def state(self, _request: web.Request) -> web.StreamResponse:
        """Everything as JSON."""
        self._flush()
        return web.Response(text=self._board.snapshot(), content_type="application/json")

    async def metrics(self, _request: web.Request) -> web.StreamResponse:
        """Prometheus text."""
        return web.Response(body=render(self._collector), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(self, _request: web.Request) -> web.StreamResponse:
        """Whether the node's event loop answers."""
        return web.Response(text="ok\n")

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Live events until either side has enough."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if request.method == "HEAD":
            return response
        # What is not sent yet belongs to those who were here before, not to the newcomer.
        self._flush()
        try:
            with self._stream.client(request.headers.get("Last-Event-ID", "")) as client:
                await response.prepare(request)
                await response.write(f"retry: {_RETRY_MS}\n\n".encode())
                await self._feed(client, response)
        except TooManyClientsError:
            headers = {"Retry-After": "10"}
            return web.Response(status=503, text="too many pages are open\n", headers=headers)
        except (ConnectionError, TimeoutError):
            pass  # the reader went away, or does not read
        return response

    async def _feed(self, client: Client, response: web.StreamResponse) -> None:
        while not client.closed:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await client.wait()
            except TimeoutError:
                await _write(response, b"event: heartbeat\ndata: {}\n\n")
            while (message := self._stream.next(client)) is not None:
                await _write(response, message.encode())


async def _write(response: web.StreamResponse, raw: bytes) -> None:
    async with asyncio.timeout(WRITE_S):
        await response.write(raw)
