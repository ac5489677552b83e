"""A validator's pointer to the last record, kept alive in the DHT.

Guarantees: the pointer names the latest round that was shown to it, is published at once, renewed
well before it expires, and comes back after a restart of the network process; a failure is tried
again and stops nobody. Does not serve the record.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Final

from shoal.node.network import signed_records
from shoal.node.network.client import NetworkClient
from shoal.node.network.signed_records import RecordPointer
from shoal.protocol.identity import Identity
from shoal.storage.errors import StorageError

_AGAIN_S: Final = 1.0

_log = logging.getLogger(__name__)


class HeadPointer:
    """What this validator says is closed.

    Args:
        network: A started client.
        run_id: The run.
        identity: The validator.
        now_s: Unix seconds.
    """

    def __init__(
        self,
        network: NetworkClient,
        run_id: bytes,
        identity: Identity,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._network = network
        self._run_id = run_id
        self._identity = identity
        self._now_s = now_s
        self._head: tuple[int, bytes] | None = None
        self._changed = asyncio.Event()
        self._last_expiry_s = 0

    def show(self, round_id: int, raw: bytes) -> None:
        """Point to a record, unless a later one is pointed to."""
        if self._head is None or round_id >= self._head[0]:
            self._head = round_id, raw
            self._changed.set()

    async def run(self) -> None:
        """Publish and renew, for ever."""
        while True:
            self._changed.clear()
            pause_s = await self._publish()
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _publish(self) -> float:
        """Publish the pointer, and say when to look again."""
        renew_s = self._network.life_s / 3
        if self._head is None:
            return renew_s
        round_id, raw = self._head
        pointer = RecordPointer(
            run_id=self._run_id,
            peer_key=self._identity.peer.key,
            sequence=self._network.next_sequence(),
            expires_at_s=self._next_expiry_s(),
            round_id=round_id,
            record_sha256=hashlib.sha256(raw).digest(),
            num_bytes=len(raw),
        )
        try:
            await self._network.publish(signed_records.build(self._identity, pointer))
        except StorageError as error:
            _log.warning("pointer to the record of round %d: %s", round_id, error)
            self._last_expiry_s -= 1
            return _AGAIN_S
        return renew_s

    def _next_expiry_s(self) -> int:
        # A store refuses what does not live longer than what it has. Where rounds take less than a
        # second this runs ahead until it is refused as too far, and then waits for the clock.
        expires_at_s = int(self._now_s() + self._network.life_s)
        self._last_expiry_s = max(expires_at_s, self._last_expiry_s + 1)
        return self._last_expiry_s
