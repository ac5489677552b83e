"""The node's side of the socket: requests and their answers, many at one time.

Guarantees: every request ends with an answer, its time limit, its cancellation or the end of the
connection; the last three tell the process that nobody waits any more. Chunks of a request that
nobody waits for are dropped.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from shoal.node.network import frames, packing
from shoal.node.network.errors import FrameError, PeerUnavailableError, WrongBytesError
from shoal.node.network.failures import raise_failure
from shoal.node.network.frames import Frame, FrameKind
from shoal.node.network.messages import Answer, Failed, Request

ChunkSink = Callable[[bytes], None]

_MAX_REQUEST_ID: Final = 2**32 - 1


class ConnectionLostError(PeerUnavailableError):
    """The network process went away; it is being started again."""


class Connection:
    """One connection to one network process.

    Args:
        reader: The socket.
        writer: Its other half.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next_id = 1
        self._waiting: dict[int, tuple[asyncio.Future[Answer], ChunkSink | None]] = {}
        self._reading = asyncio.create_task(self._read())

    async def ask(
        self, request: Request, timeout_s: float, on_chunk: ChunkSink | None = None
    ) -> Answer:
        """Send a request and wait for its answer.

        Args:
            request: What to do.
            timeout_s: How long to wait.
            on_chunk: Takes the chunks that come before the answer; must not block. What it raises
                ends the request.

        Returns:
            The answer; never `Failed`.

        Raises:
            PeerUnavailableError: No answer in time, or the process says so.
            ConnectionLostError: The process went away.
            StorageError: As the answer says; see `raise_failure`.
        """
        if self._reading.done():
            raise ConnectionLostError("the network process is not there", "")
        request_id = self._new_id()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future, on_chunk
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(Frame(FrameKind.REQUEST, request_id, packing.pack(request)))
                answer = await future
        except TimeoutError as error:
            text = f"{type(request).__name__}: no answer within {timeout_s:.0f} s"
            raise PeerUnavailableError(text, "") from error
        finally:
            del self._waiting[request_id]
            if not future.done() or future.cancelled() or future.exception() is not None:
                self._cancel(request_id)
        if isinstance(answer, Failed):
            raise_failure(answer)
        return answer

    async def ended(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.wait((self._reading,))

    def close(self) -> None:
        """End the connection, which ends the process."""
        self._reading.cancel()
        self._writer.close()

    def _new_id(self) -> int:
        while self._next_id in self._waiting:
            self._next_id = self._next_id % _MAX_REQUEST_ID + 1
        request_id = self._next_id
        self._next_id = request_id % _MAX_REQUEST_ID + 1
        return request_id

    async def _send(self, frame: Frame) -> None:
        try:
            await frames.write_frame(self._writer, frame)
        except OSError as error:
            raise ConnectionLostError("the network process went away", "") from error

    def _cancel(self, request_id: int) -> None:
        if not self._writer.is_closing():
            self._writer.write(frames.pack_head(Frame(FrameKind.CANCEL, request_id)))

    async def _read(self) -> None:
        reason = "the network process went away"
        try:
            while (frame := await frames.read_frame(self._reader)) is not None:
                self._take(frame)
        except FrameError as error:
            reason = f"the network process does not speak our language: {error}"
        finally:
            self._writer.close()
            for future, _ in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionLostError(reason, ""))

    def _take(self, frame: Frame) -> None:
        future, on_chunk = self._waiting.get(frame.request_id, (None, None))
        if frame.kind is FrameKind.ANSWER:
            answer = packing.unpack_answer(frame.body)
            if future is not None and not future.done():
                future.set_result(answer)
        elif frame.kind is not FrameKind.CHUNK:
            raise FrameError(f"{frame.kind.name} is not for this side")
        elif future is not None and not future.done() and on_chunk is not None:
            try:
                on_chunk(bytes(frame.body))
            except (OSError, WrongBytesError) as error:
                future.set_exception(error)
