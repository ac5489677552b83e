"""A small HTTP proxy on loopback that counts what passed through it."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class HttpProxy:
    """Takes CONNECT and requests with a whole URL; use it as an async context manager.

    Args:
        routes: Where a target really is, by "host:port"; others are where they say.
        answer: What is answered to a CONNECT instead; the connection ends with it.
        host: Where it listens.

    Attributes:
        tunnels: The targets of CONNECT, in order.
        requests: Methods and URLs of the other requests, in order.
        num_bytes_up: Bytes that have passed towards servers.
        num_bytes_down: Bytes that have passed towards clients.
        stall_after_bytes_up: When so many have passed towards servers nothing more does; 0: never.
        num_stalled: Connections that stand still for that.
    """

    def __init__(
        self,
        routes: Mapping[str, tuple[str, int]] | None = None,
        *,
        answer: bytes | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._routes = routes or {}
        self._answer = answer
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.tunnels: list[str] = []
        self.requests: list[str] = []
        self.num_bytes_up = 0
        self.num_bytes_down = 0
        self.stall_after_bytes_up = 0
        self.num_stalled = 0

    @property
    def url(self) -> str:
        """What a node.toml says."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, _, rest = head.partition(b"\r\n")
        method, target, version = first.decode("ascii").split(" ")
        if method == "CONNECT":
            self.tunnels.append(target)
            if self._answer is not None:
                writer.write(self._answer)
                await writer.drain()
                return
            begin, answer = b"", b"HTTP/1.1 200 Connection established\r\n\r\n"
        else:
            self.requests.append(f"{method} {target}")
            url = urlsplit(target)
            path = url.path + (f"?{url.query}" if url.query else "")
            # One request for each connection: the next one has another URL in full.
            begin = f"{method} {path} {version}\r\nConnection: close\r\n".encode() + rest
            answer, target = b"", url.netloc
        host, _, port = target.rpartition(":")
        place = self._routes.get(target, (host.strip("[]"), int(port)))
        up_reader, up_writer = await asyncio.open_connection(*place)
        try:
            up_writer.write(begin)
            writer.write(answer)
            self.num_bytes_up += len(begin)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer, up=True))
                group.create_task(self._pump(up_reader, writer, up=False))
        finally:
            up_writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        while block := await reader.read(1 << 16):
            if up:
                self.num_bytes_up += len(block)
                if 0 < self.stall_after_bytes_up < self.num_bytes_up:
                    self.num_stalled += 1
                    await asyncio.Event().wait()
            else:
                self.num_bytes_down += len(block)
            writer.write(block)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
