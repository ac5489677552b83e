"""How the S3 store reads: never more than was asked for, and never a mixture of two objects.

Guarantees: the announced length is compared with the caller's limit before a byte of the body is
read, and nothing is allocated for an object that is refused; a broken connection is taken up again
at the byte where it broke; all bytes of a result come from one version of the object, told by its
ETag, or the read begins again; an answer that is not exactly the range asked for is refused.

A server that gives no ETag, or the same one for two bodies, can still mix them: who needs the right
bytes compares a digest.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from shoal.storage.errors import ObjectSizeError
from shoal.storage.filling import require_length
from shoal.storage.header_values import number_in
from shoal.storage.object_store import range_num_bytes
from shoal.storage.progress import note_moved, note_retry
from shoal.storage.s3_answers import (
    AttemptError,
    RefusalError,
    ReplacedError,
    content_range,
)
from shoal.storage.s3_clock import CallClock
from shoal.storage.s3_filling import Filling, Piece
from shoal.storage.s3_link import Link, Reply
from shoal.storage.s3_parts import in_parallel, part_size

_NUM_STARTS: Final = 3


class Download:
    """One `get`.

    Args:
        link: The way to the server.
        clock: The call's time.
        key: The object's key, for messages.
        name: Its name in the bucket.
        max_bytes: The most that the caller can take.
        start: First byte of the range.
        length: Length of the range; None: up to the end.
        filling: Where the whole object goes; None: into memory of its own.
    """

    def __init__(
        self,
        link: Link,
        clock: CallClock,
        key: str,
        name: str,
        *,
        max_bytes: int,
        start: int,
        length: int | None,
        filling: Filling | None = None,
    ) -> None:
        self._link = link
        self._clock = clock
        self._key = key
        self._name = name
        self._max_bytes = max_bytes
        self._start = start
        self._length = length
        self._filling = filling
        self._etag = ""
        self._object_bytes = 0

    async def run(self) -> bytes:
        """Read the object.

        Returns:
            Exactly the bytes asked for.

        Raises:
            StorageError: As `ObjectStore.get` says.
            GiveUpError: The time is over, or the transfer too slow.
        """
        return bytes(await self.fill())

    async def fill(self) -> memoryview:
        """Read the object, into the caller's room where there is one.

        Returns:
            Exactly the bytes asked for.

        Raises:
            StorageError: As `ObjectStore.get` says.
            GiveUpError: The time is over, or the transfer too slow.
        """
        is_small = self._max_bytes <= self._link.limits.part_bytes
        read = self._small if is_small and self._is_whole else self._large
        for number in range(_NUM_STARTS):
            if number:
                note_retry()
            try:
                return await read()
            except ReplacedError:
                continue
        raise ObjectSizeError(
            f"{self._what}: one object expected, it was replaced {_NUM_STARTS} times meanwhile",
            self._key,
        )

    @property
    def _is_whole(self) -> bool:
        return self._start == 0 and self._length is None

    @property
    def _what(self) -> str:
        return f"object {self._key!r} in {self._link.where}"

    async def _small(self) -> memoryview:
        """Read in one request, without asking for the length first."""
        piece: list[Piece] = []

        async def attempt() -> None:
            if piece:
                await self._continue(self._clock, piece[0])
            else:
                await self._ask_and_read(self._clock, piece, {})

        await self._link.again(self._clock, self._key, attempt)
        return piece[0].sink

    async def _large(self) -> memoryview:
        """Ask for the length, then read in parts."""

        async def look() -> Reply:
            return await self._link.ask(self._clock, "head_object", Key=self._name)

        reply = await self._link.again(self._clock, self._key, look)
        self._learn(reply, number_in(reply.answer.headers.get("Content-Length")))
        sink = self._sink()
        if not sink.nbytes:
            return sink
        size = part_size(sink.nbytes, self._link.limits)
        clock = self._clock.child()
        pieces = [
            Piece(self._start + at, sink[at : at + size]) for at in range(0, sink.nbytes, size)
        ]
        if self._filling is not None:
            self._filling.begin(pieces)
        again = partial(self._link.again, clock, self._key)
        jobs = [partial(again, partial(self._continue, clock, piece)) for piece in pieces]
        await in_parallel(clock, jobs, self._link.limits.num_parallel)
        return sink

    async def _continue(self, clock: CallClock, piece: Piece) -> None:
        first = piece.start + piece.num_done
        parameters: dict[str, Any] = {"Range": f"bytes={first}-{first + piece.num_missing - 1}"}
        if self._etag:
            parameters["IfMatch"] = self._etag
        await self._ask_and_read(clock, [piece], parameters)

    async def _ask_and_read(
        self, clock: CallClock, piece: list[Piece], parameters: Mapping[str, Any]
    ) -> None:
        try:
            await self._link.run(self._ask_and_read_now, clock, piece, parameters)
        except RefusalError as error:
            if error.refusal.status in {304, 412, 416} and parameters:
                raise ReplacedError from error
            raise

    def _ask_and_read_now(
        self, clock: CallClock, piece: list[Piece], parameters: Mapping[str, Any]
    ) -> None:
        began_at_s = clock.counted_s()
        reply = self._link.caller.call(clock, "get_object", {"Key": self._name, **parameters})
        try:
            if piece:
                self._check_range(reply, piece[0])
            else:
                piece.append(self._whole_piece(reply))
            self._read(reply, piece[0], began_at_s)
        finally:
            reply.answer.close()

    def _read(self, reply: Reply, piece: Piece, began_at_s: float) -> None:
        num_before = piece.num_done
        try:
            for block in reply.answer.blocks(piece.num_missing):
                piece.add(block)
                note_moved(len(block))
                if self._filling is not None:
                    self._filling.tell()
        except AttemptError as error:
            raise self._broken(piece, num_before, began_at_s) from error
        if piece.num_missing:
            raise self._broken(piece, num_before, began_at_s)
        reply.answer.finish()

    def _broken(self, piece: Piece, num_before: int, began_at_s: float) -> AttemptError:
        # A server that breaks off after a few bytes, again and again, trickles too.
        least = self._link.limits.min_bytes_per_s * (self._clock.counted_s() - began_at_s)
        return AttemptError(
            f"the connection ended {piece.num_missing} bytes early",
            has_progressed=piece.num_done - num_before >= max(least, 1),
        )

    def _whole_piece(self, reply: Reply) -> Piece:
        answer = reply.answer
        num_bytes = number_in(answer.headers.get("Content-Length"))
        if answer.status != 200 or "Transfer-Encoding" in answer.headers:
            num_bytes = None
        self._learn(reply, num_bytes)
        piece = Piece(0, self._sink())
        if self._filling is not None:
            self._filling.begin([piece])
        return piece

    def _learn(self, reply: Reply, num_bytes: int | None) -> None:
        if num_bytes is None:
            raise ObjectSizeError(
                f"{self._what}: a length expected, the server's answer has none", self._key
            )
        self._object_bytes = num_bytes
        self._etag = reply.answer.headers.get("ETag", "")

    def _sink(self) -> memoryview:
        """Room for what is wanted; its length is known to be allowed."""
        num_bytes = self._num_wanted()
        if self._filling is None:
            return memoryview(bytearray(num_bytes))
        require_length(self._key, num_bytes, self._filling.room)
        return self._filling.room

    def _num_wanted(self) -> int:
        return range_num_bytes(
            self._key,
            self._object_bytes,
            max_bytes=self._max_bytes,
            start=self._start,
            length=self._length,
        )

    def _check_range(self, reply: Reply, piece: Piece) -> None:
        headers = reply.answer.headers
        found = content_range(headers.get("Content-Range"))
        first = piece.start + piece.num_done
        expected = (first, first + piece.num_missing - 1, self._object_bytes)
        if self._etag and headers.get("ETag", self._etag) != self._etag:
            raise ReplacedError
        num_bytes = number_in(headers.get("Content-Length"))
        is_exact = found == expected and num_bytes == piece.num_missing
        if reply.answer.status != 206 or not is_exact or "Transfer-Encoding" in headers:
            raise ObjectSizeError(
                f"{self._what}: bytes {expected[0]} to {expected[1]} of {expected[2]} asked for, "
                f"the server answers {reply.answer.status} with {num_bytes} bytes",
                self._key,
            )
