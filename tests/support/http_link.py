"""One node's way to an HTTP server: passes requests on, or does to them what a test says.

What a proxy of bytes cannot fake is made here: other statuses, bodies, headers and lengths. Every
rule counts how often it was applied, and when.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from tests.support.s3_bad_server import BadServer, Exchange, Seen


@dataclass(frozen=True)
class Reply:
    """A server's answer."""

    status: int
    headers: dict[str, object]
    body: bytes


Act = Callable[[Exchange, "HttpLink"], Awaitable[None]]
"""Answers a request instead of the link."""


@dataclass
class Rule:
    """What happens to some requests.

    Attributes:
        fits: Which ones.
        act: What happens.
        spans: Begin and end of every time, unix seconds; the end is 0 while it lasts.
    """

    fits: Callable[[Seen], bool]
    act: Act
    spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def num_done(self) -> int:
        """How often it was applied."""
        return len(self.spans)

    async def apply(self, exchange: Exchange, link: "HttpLink") -> None:
        """Acts, and notes when."""
        number, begin_s = len(self.spans), time.time()
        self.spans.append((begin_s, 0.0))
        try:
            await self.act(exchange, link)
        finally:
            self.spans[number] = (begin_s, time.time())


class HttpLink:
    """Listens on a port of its own; use `server` as an async context manager.

    Attributes:
        target: Host and port of the server; may be changed at any time.
        rules: The first one that fits is applied.
        num_cut: Requests that met a cut link.
        num_passed: Requests that reached the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.rules: list[Rule] = []
        self.server = BadServer(self._serve)
        self.num_cut = 0
        self.num_passed = 0
        self._hangs = False
        self._open = asyncio.Event()
        self._open.set()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server.port

    def cut(self, *, hangs: bool) -> None:
        """From now on nothing gets through.

        Args:
            hangs: Requests wait, as packets do that nobody answers; else connections are reset.
        """
        self._hangs = hangs
        self._open.clear()

    def mend(self) -> None:
        """Everything gets through again, what hung included, as TCP sends again what was lost."""
        self._open.set()

    async def _serve(self, exchange: Exchange) -> None:
        # A bad server remembers all requests; here there are too many.
        self.server.seen.clear()
        if not self._open.is_set():
            self.num_cut += 1
            if not self._hangs:
                exchange.reset()
                return
            await self._open.wait()
        rule = next((rule for rule in self.rules if rule.fits(exchange.seen)), None)
        if rule is None:
            await self.pass_on(exchange)
        else:
            await rule.apply(exchange, self)

    async def pass_on(self, exchange: Exchange) -> None:
        """Lets the server answer; resets the connection where there is none."""
        try:
            raw = await self._ask(exchange.seen)
        except OSError:
            exchange.reset()
            return
        self.num_passed += 1
        await exchange.raw(raw)
        exchange.close()

    async def fetch(self, seen: Seen) -> Reply:
        """The server's answer to a request, with a body of known length."""
        head, _, body = (await self._ask(seen)).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers: dict[str, object] = {name: value.strip() for name, _, value in pairs}
        headers.pop("Connection", None)
        return Reply(int(first.split(" ")[1]), headers, body)

    async def _ask(self, seen: Seen) -> bytes:
        reader, writer = await asyncio.open_connection(*self.target)
        try:
            writer.write("".join(_head(seen)).encode("latin-1") + seen.body)
            return await reader.read()
        finally:
            writer.close()


def _head(seen: Seen) -> Iterator[str]:
    yield f"{seen.method} {seen.target} HTTP/1.1\r\n"
    for name, value in seen.headers:
        if name.lower() != "connection":
            yield f"{name}: {value}\r\n"
    yield "Connection: close\r\n\r\n"
