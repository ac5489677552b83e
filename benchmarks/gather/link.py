"""The other end of the link, in a process of its own: payloads in memory behind a slow link.

Every connection of the receiver goes through one token bucket, the receiver's own link; single
peers may be dead, stand still in the middle, or send one byte a second.
"""

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

_BLOCK_BYTES = 1 << 17
_QUEUE_S = 0.05


@dataclass(frozen=True, slots=True)
class Served:
    """One peer's object and how it is served: well, dead, stalls or drips."""

    path: str
    body: bytes
    manner: str = "well"


class _Bucket:
    """A link of so many bytes per second, shared by all connections.

    The sender may be late by what a router's queue holds (50 ms) without the link going idle.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = time.monotonic()

    async def take(self, num_bytes: int) -> None:
        earliest_s = time.monotonic() - _QUEUE_S
        self._free_at_s = max(self._free_at_s, earliest_s) + num_bytes / self._bytes_per_s
        wait_s = self._free_at_s - time.monotonic()
        if wait_s > 0.002:
            await asyncio.sleep(wait_s)


@contextmanager
def serving(objects: list[Served], bytes_per_s: float) -> Iterator[list[int]]:
    """Serves each object on a port of its own; gives the ports, 0 for the dead."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, objects, bytes_per_s), daemon=True)
    process.start()
    try:
        ports: list[int] = ours.recv()
        yield ports
    finally:
        process.terminate()
        process.join(10)


def _main(
    pipe: "multiprocessing.connection.Connection", objects: list[Served], rate: float
) -> None:
    asyncio.run(_serve(pipe, objects, rate))


async def _serve(pipe: Connection, objects: list[Served], rate: float) -> None:
    bucket, ports = _Bucket(rate), []
    for served in objects:
        if served.manner == "dead":
            ports.append(1)
            continue

        async def answer(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: Served = served
        ) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await _answer(reader, writer, served, bucket)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    pipe.send(ports)
    await asyncio.Event().wait()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: Served, bucket: _Bucket
) -> None:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        if served.path.encode() not in head.split(b"\r\n", 1)[0]:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            continue
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(served.body))
        for start in range(0, len(served.body), _BLOCK_BYTES):
            if served.manner == "stalls" and start >= len(served.body) // 2:
                await asyncio.Event().wait()
            if served.manner == "drips":
                writer.write(served.body[start : start + 1])
                await writer.drain()
                await asyncio.sleep(1.0)
                continue
            block = served.body[start : start + _BLOCK_BYTES]
            await bucket.take(len(block))
            writer.write(block)
            await writer.drain()
