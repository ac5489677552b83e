"""A TCP proxy that makes a link slow, late or unreliable, and counts what it did to it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

_BLOCK_BYTES = 16 << 10


@dataclass
class Link:
    """What the link is like; may be changed while it is in use.

    Attributes:
        bytes_per_s: Most bytes per second in each direction, all connections together; 0: no limit.
        latency_s: How much later everything arrives, one way.
        drop_after_bytes: A connection is reset when so many bytes have come from the server; 0:
            never.
        drop_up_after_bytes: The same for bytes from the client.
        num_drops: How many connections at most are dropped; None: all of them.
        stall_after_bytes: A connection stands still when so many bytes have come from the server;
            0: never.
        num_stalls: How many connections at most stand still; None: all of them.
        is_cut: Nothing gets through: new connections are reset, old ones too.
    """

    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    drop_after_bytes: int = 0
    drop_up_after_bytes: int = 0
    num_drops: int | None = None
    stall_after_bytes: int = 0
    num_stalls: int | None = None
    is_cut: bool = False


class ShapingProxy:
    """Stands between a client and one server; use it as an async context manager.

    Attributes:
        link: What the link is like now.
        num_connections: Connections that clients have opened.
        num_dropped: Connections that it has reset.
        num_stalled: Connections that it has let stand still.
        num_bytes_up: Bytes that have passed towards the server.
        num_bytes_down: Bytes that have passed towards clients.
    """

    def __init__(self, host: str, port: int, link: Link | None = None) -> None:
        self._target = (host, port)
        self.link = link or Link()
        self.port = 0
        self.num_connections = 0
        self.num_dropped = 0
        self.num_stalled = 0
        self.num_bytes_up = 0
        self.num_bytes_down = 0
        self._free_at_s = {"up": 0.0, "down": 0.0}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lead_to(self, host: str, port: int) -> None:
        """Where connections go that are opened from now on."""
        self._target = (host, port)

    @property
    def num_open(self) -> int:
        """Connections that are open now."""
        return len(self._tasks)

    def drop_all(self) -> None:
        """Ends every connection that is open now."""
        self.num_dropped += len(self._tasks)
        for task in tuple(self._tasks):
            task.cancel()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: asyncio reports the cancelling of the one that it has made.
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        if self.link.is_cut:
            self._drop(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            # As without a proxy: nobody listens there.
            writer.transport.abort()
            return
        connection = _Connection(self, writer, server_writer)
        up = asyncio.create_task(connection.copy(reader, server_writer, connection.passed_up))
        down = asyncio.create_task(connection.copy(server_reader, writer, connection.passed_down))
        try:
            await asyncio.gather(up, down)
        finally:
            up.cancel()
            down.cancel()
            for end in (writer, server_writer):
                end.close()

    def _drop(self, *writers: asyncio.StreamWriter) -> None:
        self.num_dropped += 1
        for writer in writers:
            writer.transport.abort()

    async def wait_for_turn(self, direction: str, num_bytes: int) -> None:
        """Keep to the rate, which all connections share."""
        if self.link.bytes_per_s:
            now_s = time.monotonic()
            begins_at_s = max(now_s, self._free_at_s[direction])
            self._free_at_s[direction] = begins_at_s + num_bytes / self.link.bytes_per_s
            await asyncio.sleep(self._free_at_s[direction] - now_s)


class _Connection:
    """One client's connection and its continuation to the server."""

    def __init__(
        self, proxy: ShapingProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._ends = (client, server)
        self._num_up = 0
        self._num_down = 0

    async def copy(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        passed: Callable[[int], Awaitable[bool]],
    ) -> None:
        """Carry bytes one way, each block as late as the link says."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)
        sending = asyncio.create_task(self._send(waiting, writer, passed))
        try:
            with suppress(OSError):
                while block := await reader.read(_BLOCK_BYTES):
                    await waiting.put((time.monotonic() + self._proxy.link.latency_s, block))
            await waiting.put((0.0, b""))
            await sending
        finally:
            sending.cancel()

    async def _send(
        self,
        waiting: "asyncio.Queue[tuple[float, bytes]]",
        writer: asyncio.StreamWriter,
        passed: Callable[[int], Awaitable[bool]],
    ) -> None:
        with suppress(OSError):
            while True:
                due_at_s, block = await waiting.get()
                await asyncio.sleep(max(0.0, due_at_s - time.monotonic()))
                if not block:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                if not await passed(len(block)):
                    return
                writer.write(block)
                await writer.drain()

    async def passed_up(self, num_bytes: int) -> bool:
        """Count bytes from the client; false if they must not go on."""
        proxy, link = self._proxy, self._proxy.link
        await proxy.wait_for_turn("up", num_bytes)
        self._num_up += num_bytes
        proxy.num_bytes_up += num_bytes
        return not self._is_dropped(link.drop_up_after_bytes, self._num_up)

    async def passed_down(self, num_bytes: int) -> bool:
        """Count bytes from the server; false if they must not go on."""
        proxy, link = self._proxy, self._proxy.link
        await proxy.wait_for_turn("down", num_bytes)
        self._num_down += num_bytes
        if link.stall_after_bytes and self._num_down > link.stall_after_bytes:
            is_left = link.num_stalls is None or proxy.num_stalled < link.num_stalls
            if is_left:
                proxy.num_stalled += 1
                await asyncio.Event().wait()
        proxy.num_bytes_down += num_bytes
        return not self._is_dropped(link.drop_after_bytes, self._num_down)

    def _is_dropped(self, limit: int, num_bytes: int) -> bool:
        proxy, link = self._proxy, self._proxy.link
        is_left = link.num_drops is None or proxy.num_dropped < link.num_drops
        if link.is_cut or (limit and num_bytes > limit and is_left):
            proxy._drop(*self._ends)
            return True
        return False
