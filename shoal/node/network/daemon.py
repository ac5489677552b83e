"""The network process: answers its node, keeps the host in touch with its seeds, ends with both.

It runs until its node closes the connection, or p2pd ends, whichever is first; the node's side
starts it again. Each request runs in a task of its own, so a slow peer delays nobody else.

Guarantees: no request is without an answer, unless it was cancelled; nothing that a peer sends
ends the process; an answer never waits for ever (every step has a time limit).
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from shoal.node.network import finding_messages, frames, messages, packing
from shoal.node.network.addresses import parse_peer
from shoal.node.network.dht_desk import DhtDesk
from shoal.node.network.errors import FrameError
from shoal.node.network.failures import to_failure
from shoal.node.network.finding import Finding
from shoal.node.network.frames import Frame, FrameKind
from shoal.node.network.libp2p import Libp2p
from shoal.node.network.link_share import num_streams, rate_of
from shoal.node.network.messages import Answer, FailCode, Failed, Request, Start
from shoal.node.network.serving import CONTROL_OBJECT_BYTES, ObjectServer
from shoal.node.network.streams import (
    PROTOCOL_NAME,
    Limits,
    ObjectRequest,
    Pace,
    ask_size,
    receive,
)
from shoal.storage.allowance import wait_for
from shoal.storage.errors import StorageUnavailableError

EXIT_OK: Final = 0
EXIT_BAD_FRAME: Final = 2
EXIT_P2PD_ENDED: Final = 3
MAX_REQUESTS: Final = 256
MAX_SHOWN_PEERS: Final = 64
_REFRESH_S: Final = 30.0
_DHT_TIMEOUT_S: Final = 30.0

_log = logging.getLogger(__name__)


class Daemon:
    """One process's work.

    Args:
        options: What to be.
        reader: The connection to the node.
        writer: Its other half.
    """

    def __init__(
        self, options: Start, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._options = options
        self._reader = reader
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._num_bytes_down = 0
        self._down = rate_of(options.download_bytes_per_s)
        parallel = num_streams(self._down, options.min_bytes_per_s, MAX_REQUESTS)
        self._downloads = asyncio.Semaphore(parallel)
        self._dht = DhtDesk(options)
        self._server = ObjectServer(
            run_id=options.run_id,
            max_streams=options.max_uploads,
            max_streams_per_peer=options.max_uploads_per_peer,
            min_bytes_per_s=options.min_bytes_per_s,
            rate=rate_of(options.upload_bytes_per_s),
            folders=tuple(map(Path, options.folders)),
        )
        self._host: Libp2p
        self._finding: Finding

    async def run(self, request_id: int, sockets: Path) -> int:
        """Start the host, answer the node's first request and then all others.

        Args:
            request_id: Of the request that brought the options.
            sockets: A folder for p2pd's sockets.

        Returns:
            The exit status.

        Raises:
            OSError: p2pd does not start.
        """
        self._host = await Libp2p.start(self._options, sockets, self._dht.may_store)
        self._dht.host = self._host
        self._finding = Finding(self._host, self._options)
        try:
            await self._finding.serve()
            await self._host.serve_streams(PROTOCOL_NAME, self._serve_stream)
            await self._send(request_id, await self._status())
            return await self._until_end()
        finally:
            await self._host.stop()

    async def _until_end(self) -> int:
        works = self._finding.run(), self._dht.refresh_for_ever()
        background = [asyncio.create_task(work) for work in works]
        try:
            return await self._until_either_ends()
        finally:
            for task in (*background, *self._tasks.values()):
                task.cancel()

    async def _until_either_ends(self) -> int:
        requests = asyncio.create_task(self._read_requests())
        p2pd = asyncio.create_task(self._host.p2pd_ended())
        await asyncio.wait((requests, p2pd), return_when=asyncio.FIRST_COMPLETED)
        if not requests.done():
            requests.cancel()
            _log.error("p2pd ended with status %s", p2pd.result())
            return EXIT_P2PD_ENDED
        p2pd.cancel()
        try:
            requests.result()
        except FrameError as error:
            _log.error("the node's side of the connection: %s", error)
            return EXIT_BAD_FRAME
        return EXIT_OK

    async def _read_requests(self) -> None:
        while (frame := await frames.read_frame(self._reader)) is not None:
            if frame.kind is FrameKind.CANCEL:
                task = self._tasks.get(frame.request_id)
                if task is not None:
                    task.cancel()
            elif frame.kind is FrameKind.REQUEST:
                self._begin(frame.request_id, packing.unpack_request(frame.body))
            else:
                raise FrameError(f"{frame.kind.name} is not for this side")

    def _begin(self, request_id: int, request: Request) -> None:
        if request_id in self._tasks:
            raise FrameError(f"request id {request_id} is in use")
        task = asyncio.create_task(self._answer(request_id, request))
        self._tasks[request_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request_id))

    async def _answer(self, request_id: int, request: Request) -> None:
        if len(self._tasks) > MAX_REQUESTS:
            await self._send(request_id, Failed(code=FailCode.BUSY, detail="too many requests"))
            return
        try:
            answer = await self._do(request_id, request)
        except Exception as error:  # noqa: BLE001 - whatever it is costs this request only
            answer = to_failure(error)
        await self._send(request_id, answer)

    async def _send(self, request_id: int, answer: Answer) -> None:
        try:
            body = packing.pack(answer)
            await frames.write_frame(self._writer, Frame(FrameKind.ANSWER, request_id, body))
        except OSError:
            _log.debug("the node went away before an answer")

    async def _do(self, request_id: int, request: Request) -> Answer:
        match request:
            case messages.Ping():
                await self._host.addresses()
            case messages.AskStatus():
                return await self._status()
            case messages.DhtPut() | messages.DhtGet() | messages.DhtGive() | messages.AskPeers():
                return await self._dht.do(request)
            case messages.Connect():
                await self._connect(request.addresses)
            case messages.Serve() | messages.Withdraw() | messages.AllowUploads():
                self._instruct(request)
            case messages.Fetch():
                await self._fetch(request_id, request)
            case messages.AskSize():
                return await self._ask_size(request)
            case (
                finding_messages.AddSeeds()
                | finding_messages.ProbeSeed()
                | finding_messages.AskReach()
            ):
                return await self._finding.do(request)
            case Start():
                raise ValueError("the process has been told before what to be")
        return messages.Done()

    def _instruct(
        self, request: messages.Serve | messages.Withdraw | messages.AllowUploads
    ) -> None:
        match request:
            case messages.Serve():
                self._server.add(request.object_id, Path(request.path), request.num_bytes)
            case messages.Withdraw():
                self._server.remove(request.object_id)
            case messages.AllowUploads():
                self._server.gives_bulk = request.allowed

    async def _status(self) -> messages.Status:
        connected = await self._host.connected()
        return messages.Status(
            peer_id=self._host.peer_id,
            process_id=os.getpid(),
            p2pd_process_id=self._host.p2pd_process_id,
            addresses=await self._host.addresses(),
            connected=connected[:MAX_SHOWN_PEERS],
            num_connected=len(connected),
            routing_table_size=self._host.routing_table_size,
            seeds=self._finding.lines,
            last_error=self._finding.trouble,
            num_served=self._server.num_objects,
            num_bytes_up=self._server.num_bytes_up,
            num_bytes_down=self._num_bytes_down,
            refused=dict(self._dht.refused),
        )

    async def _connect(self, texts: tuple[str, ...]) -> None:
        libp2p_id, addresses = parse_peer(texts, allow_private=self._options.allow_private)
        await self._host.dial(libp2p_id, addresses)
        if await self._host.join(libp2p_id) and addresses:
            self._finding.note_good(addresses[0])

    async def _fetch(self, request_id: int, request: messages.Fetch) -> None:
        wanted = ObjectRequest(
            run_id=self._options.run_id,
            object_id=request.object_id,
            offset=request.offset,
            num_bytes=request.num_bytes,
        )
        if not 0 < wanted.num_bytes <= request.total_bytes - wanted.offset:
            raise ValueError(f"{wanted.num_bytes} bytes from {wanted.offset} on, of {request}")
        pace = self._pace(request.timeout_ms)
        peer = await self._dial(request.addresses)
        is_small = request.total_bytes <= CONTROL_OBJECT_BYTES
        if not is_small and self._downloads.locked():
            # It waits for our own cap, which is no reason to ask another peer.
            await self._give(request_id, b"")
        async with (
            contextlib.nullcontext() if is_small else self._downloads,
            self._stream(peer) as (reader, writer),
        ):
            async for data in receive(reader, writer, wanted, request.total_bytes, pace):
                self._num_bytes_down += len(data)
                await self._give(request_id, data)
                if self._down is not None:
                    await wait_for(self._down, "control" if is_small else "bulk", len(data))

    async def _give(self, request_id: int, data: bytes) -> None:
        await frames.write_frame(self._writer, Frame(FrameKind.CHUNK, request_id, data))

    async def _ask_size(self, request: messages.AskSize) -> messages.Size:
        pace = self._pace(request.timeout_ms)
        async with self._stream(await self._dial(request.addresses)) as (reader, writer):
            run_id = self._options.run_id
            total_bytes = await ask_size(reader, writer, run_id, request.object_id, pace)
        return messages.Size(num_bytes=min(total_bytes, 2**63 - 1))

    def _pace(self, timeout_ms: int) -> Pace:
        limits = Limits(timeout_s=timeout_ms / 1000, min_bytes_per_s=self._options.min_bytes_per_s)
        return Pace(limits, time.monotonic)

    async def _dial(self, texts: tuple[str, ...]) -> str:
        """Have a connection to a peer; gives its libp2p id."""
        libp2p_id, addresses = parse_peer(texts, allow_private=self._options.allow_private)
        await self._host.dial(libp2p_id, addresses)
        if addresses:
            self._finding.note_good(addresses[0])
        return libp2p_id

    @asynccontextmanager
    async def _stream(
        self, libp2p_id: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await self._host.open_stream(libp2p_id, PROTOCOL_NAME)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _serve_stream(
        self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await self._server.answer(peer, reader, writer)
        except (StorageUnavailableError, OSError) as error:
            _log.debug("stream of %s: %s", peer, error)
