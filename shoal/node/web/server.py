"""The page's server, beside the node's loop.

Guarantees: an address that cannot be used is a `ConfigError` before training starts; once started,
nothing here can stop or slow down training: events arrive through the loop's thread-safe queue,
are handed out at most every `FLUSH_S`, and a failure is logged and ends one request at most.

Does not do: TLS or authentication. Listen on loopback and use an SSH tunnel or a proxy.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web

from shoal.node.config import WebConfig
from shoal.node.errors import ConfigError
from shoal.node.listening import listening
from shoal.node.telemetry.event_log import EventLog
from shoal.node.web.address import ListenAddress, parse_listen
from shoal.node.web.board import Board
from shoal.node.web.event_fields import Event
from shoal.node.web.guard import add_headers, make_guard
from shoal.node.web.history import NodeHistory, RunFacts
from shoal.node.web.log_tail import LogTail
from shoal.node.web.pages import Pages
from shoal.node.web.stream import Stream

logger = logging.getLogger(__name__)

FLUSH_S = 0.2
_SHUTDOWN_S = 1.0
NODE_NAME = "node"


class WebServer:
    """Serves one board.

    Args:
        board: what to show.
        listen: where.
        hosts: further host names under which browsers may ask.
    """

    def __init__(self, board: Board, listen: ListenAddress, hosts: Sequence[str] = ()) -> None:
        self.board = board
        self.stream = Stream(secrets.token_hex(4), board.snapshot)
        self._listen = listen
        self._hosts = frozenset(host.lower() for host in hosts)
        self._held = AsyncExitStack()
        self._dirty = False

    @property
    def address(self) -> ListenAddress:
        """Where it listens; the real port once it was started."""
        return self._listen

    @property
    def url(self) -> str:
        """For people."""
        return f"http://{self._listen}/"

    async def start(self) -> None:
        """Opens the socket.

        Raises:
            ConfigError: the address is in use, not this machine's, or not allowed.
        """
        host, port = self._listen.bare_host, self._listen.port
        served = listening(self._application(), host, port, shutdown_s=_SHUTDOWN_S)
        try:
            _, port = await self._held.enter_async_context(served)
        except OSError as error:
            raise ConfigError(
                "node.toml",
                "web.listen",
                "an address that is free (port 0 is any free one)",
                f"{self._listen}: {error.strerror or error}",
            ) from error
        self._listen = ListenAddress(self._listen.host, port)
        logger.info("page: %s", self.url)

    async def stop(self) -> None:
        """Sends what is left, ends all requests and closes the socket; never raises."""
        self.flush()
        self.stream.close()
        try:
            await self._held.aclose()
        except OSError as error:
            logger.warning("page: not closed cleanly: %s", error)

    def take(self, name: str, event: Event) -> None:
        """Takes an event; call it in the loop's thread. It is sent with the next flush."""
        self.board.take(name, event)
        if not self._dirty:
            self._dirty = True
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Sends what has changed, if anything has."""
        if self._dirty:
            self._dirty = False
            self.stream.publish("change", self.board.changes())

    def _application(self) -> web.Application:
        guard = make_guard(lambda: self._listen, self._hosts)
        app = web.Application(middlewares=[guard], client_max_size=1)
        app.on_response_prepare.append(add_headers)
        Pages(self.board, self.stream, self.flush).add_routes(app)
        return app


@asynccontextmanager
async def node_page(
    config: WebConfig, log: EventLog, facts: RunFacts, now_s: Callable[[], float]
) -> AsyncIterator[WebServer | None]:
    """The page of one node, as long as the block runs: the log's past, then every new event.

    Args:
        config: where to listen; gives None if nowhere.
        log: the node's event log; nothing may be emitted before the block begins.
        facts: from the manifest.
        now_s: the clock that the log uses.

    Raises:
        ConfigError: the address cannot be used.
    """
    listen = parse_listen(config.listen)
    if listen is None:
        yield None
        return
    history = await asyncio.to_thread(_read_back, log.path, facts)
    server = WebServer(Board([history], now_s), listen, config.hosts)
    await server.start()
    unsubscribe = log.subscribe(_handing_over(server, asyncio.get_running_loop()))
    try:
        yield server
    finally:
        unsubscribe()
        # What was emitted last, how the node ended, is still on its way through the loop.
        await asyncio.sleep(0)
        await server.stop()


def _read_back(path: Path, facts: RunFacts) -> NodeHistory:
    """What was done before this process began."""
    history = NodeHistory(NODE_NAME, facts)
    for event in LogTail(path).read_new():
        history.take(event)
    history.restart()
    return history


def _handing_over(server: WebServer, loop: asyncio.AbstractEventLoop) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        """From whichever thread emits."""
        with suppress(RuntimeError):  # the loop is closed: the node has ended
            loop.call_soon_threadsafe(server.take, NODE_NAME, event)

    return on_event
