"""One payload on its way here: its bytes are checked while they arrive.

Guarantees: the payload's exact length is known before a byte is read; its room is this download's
alone; a head that breaks a rule ends the download at once; hash and content are checked in a worker
thread behind the bytes that arrive, so that little is left to do after the last one; nothing is
said of the content before the hash is known to be the signed one.

Does not do: retry, or say whose fault a failed transfer is.
"""

import asyncio
import time
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np

from shoal.compression import CheckedBody
from shoal.node.run_context import RunContext
from shoal.protocol.errors import ErrorCode, PayloadError
from shoal.protocol.payload import ArrivingPayload, Payload, PayloadContext
from shoal.storage.errors import ObjectTooLargeError, ObjectTooShortError
from shoal.storage.filling import read_into
from shoal.storage.object_store import ObjectStore
from shoal.storage.waits import excused_timeout

_STEP_BYTES: Final = 1 << 20
"""Fewer new bytes are not worth a thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A verified payload, its bytes, and how long it took."""

    payload: Payload[CheckedBody]
    raw: memoryview
    download_s: float
    """From the request to the last byte."""
    check_s: float
    """From the last byte until it was verified."""


class Receiving:
    """One download of a payload.

    Args:
        run: shared.
        context: the round.
    """

    def __init__(self, run: RunContext, context: PayloadContext[CheckedBody]) -> None:
        # Not zeroed: memory is taken as bytes arrive, so that a dead peer costs none.
        self._room = np.empty(run.manifest.payload_bytes, dtype=np.uint8).data
        self._arriving = ArrivingPayload(run.payload_rules, context, self._room)
        self._limit_s = run.limits.transfer_s
        self._lock = Lock()
        self._changed = asyncio.Event()
        self._is_over = False
        self._num_told = 0
        self._num_restarts = 0
        self._num_seen_restarts = 0
        self.num_arrived = 0
        """Bytes that are there so far."""

    async def run(self, store: ObjectStore, key: str) -> Received:
        """Downloads and checks.

        Args:
            store: where the payload is.
            key: its name there.

        Raises:
            PayloadError: it is not a valid payload of the round; has the code.
            StorageError: it could not be read.
            TimeoutError: not within the time of one transfer.
        """
        start_s = time.monotonic()
        self._loop = asyncio.get_running_loop()
        try:
            async with excused_timeout(self._limit_s):
                await self._read_and_check(store, key)
        except (ObjectTooLargeError, ObjectTooShortError) as error:
            raise PayloadError(ErrorCode.E_LEN, str(error)) from error
        read_s = time.monotonic()
        payload = await asyncio.to_thread(self._finish)
        return Received(
            payload=payload,
            raw=self._room.toreadonly(),
            download_s=read_s - start_s,
            check_s=time.monotonic() - read_s,
        )

    async def _read_and_check(self, store: ObjectStore, key: str) -> None:
        reading = asyncio.create_task(read_into(store, key, self._room, self._note))
        checking = asyncio.create_task(self._check_while_arriving())
        try:
            await asyncio.wait((reading, checking), return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                await reading
            self._is_over = True
            self._changed.set()
            await checking
        finally:
            for task in (reading, checking):
                task.cancel()
            await asyncio.gather(reading, checking, return_exceptions=True)

    def _note(self, num_arrived: int) -> None:
        """What the store tells, from any thread."""
        with self._lock:
            if num_arrived < self.num_arrived:
                self._num_restarts += 1
                self._num_told = 0
            self.num_arrived = num_arrived
            if num_arrived - self._num_told < _STEP_BYTES:
                return
            self._num_told = num_arrived
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _check_while_arriving(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._is_over:
                return
            await asyncio.to_thread(self._advance)

    def _advance(self) -> None:
        with self._lock:
            num_arrived, num_restarts = self.num_arrived, self._num_restarts
        if num_restarts != self._num_seen_restarts:
            self._num_seen_restarts = num_restarts
            self._arriving.restart()
        self._arriving.advance(num_arrived)

    def _finish(self) -> Payload[CheckedBody]:
        self._advance()
        return self._arriving.finish()
