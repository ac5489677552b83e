"""The run's records over the network: which round is closed, and the record's bytes.

A validator's signed pointer in the DHT names the last closed round with digest and length of its
record. The record of any round is an object with a computable id (`object_ids`), served by the
validators and by everybody who has read it, so an older one is found without an index.

Guarantees: what is handed on and kept was signed by enough validators for this round; a pointer
that names other bytes than the kept ones is followed, so that a fork can be seen. Whether a record
follows the one before is for its reader. Asking is bounded: pointers by `LookUps`, peers by pauses.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from shoal.node.network import signed_records
from shoal.node.network.client import NetworkClient
from shoal.node.network.dht_records import POINTER_KIND
from shoal.node.network.downloads import Source
from shoal.node.network.errors import PeerUnavailableError, WrongBytesError
from shoal.node.network.hedging import first_answer
from shoal.node.network.ledger import Ledger
from shoal.node.network.look_ups import LookUps
from shoal.node.network.object_ids import record_object_id
from shoal.node.network.peer_book import LOOK_UP_TIMEOUT_S, PeerBook
from shoal.node.network.signed_records import RecordPointer
from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import PeerId
from shoal.protocol.record import RecordRules, check_certified
from shoal.storage.errors import ObjectNotFoundError, StorageError

WAIT_S: Final = 1.5
FETCH_TIMEOUT_S: Final = 20.0
_LEAST_ASK_EVERY_S: Final = 5.0
_MAX_SILENT: Final = 256

_Named = tuple[int, PeerId]
"""A round, and the validator who names a record of it."""

_log = logging.getLogger(__name__)


class RecordFinder:
    """Finds records.

    Args:
        network: A started client.
        book: The validators, and who else may have a record.
        ledger: Where records stay.
        rules: From the manifest.
        pause_s: How often a validator's pointer is looked up.
        now_s: A monotonic clock.
    """

    def __init__(
        self,
        network: NetworkClient,
        book: PeerBook,
        ledger: Ledger,
        rules: RecordRules,
        pause_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._network = network
        self._book = book
        self._ledger = ledger
        self._rules = rules
        self._look_ups: LookUps[PeerId] = LookUps(self._look_up, pause_s, now_s)
        self._look_ups_of_others: LookUps[_Named] = LookUps(self._look_at_another, pause_s, now_s)
        self._others: dict[_Named, bytes] = {}
        self._ask_every_s = max(10 * pause_s, _LEAST_ASK_EVERY_S)
        self._now_s = now_s
        self._asked_at_s = self._heard_at_s = float("-inf")
        self._pointers: dict[PeerId, RecordPointer] = {}
        self._silent: set[Source] = set()

    async def get(self, round_id: int) -> bytes:
        """The record of a round.

        Raises:
            ObjectNotFoundError: As far as anybody says, the round is open.
            PeerUnavailableError: Nobody says anything, or nobody gives the record now.
        """
        await self._look_ups.refresh(self._book.validators, WAIT_S)
        kept = await self.kept(round_id)
        if kept is not None:
            return await self._another(round_id, kept) or kept
        is_closed = any(one.round_id >= round_id for one in self._pointers.values())
        if is_closed or self._now_s() >= self._asked_at_s + self._ask_every_s:
            self._asked_at_s = self._now_s()
            raw = await self._ask_all(round_id)
            if raw is not None:
                return raw
        name = f"record of round {round_id}"
        if is_closed or self._now_s() > self._heard_at_s + 3 * self._ask_every_s:
            raise PeerUnavailableError(f"{name}: nobody gives it now", name)
        raise ObjectNotFoundError(f"{name}: nobody knows of one", name)

    async def kept(self, round_id: int) -> bytes | None:
        """The record as it is kept here."""
        return await self._ledger.read(self._object_id(round_id), self._rules.max_bytes)

    async def keep(self, round_id: int, raw: bytes) -> None:
        """Serve a record from now on.

        Raises:
            StorageError: It cannot be written.
        """
        await self._ledger.write(self._object_id(round_id), raw)

    async def drop(self, round_id: int) -> None:
        """Serve a record no longer."""
        await self._ledger.drop(self._object_id(round_id))

    def close(self) -> None:
        """End all look-ups."""
        self._look_ups.close()
        self._look_ups_of_others.close()

    def _object_id(self, round_id: int) -> bytes:
        return record_object_id(self._rules.run_id, round_id)

    async def _look_up(self, validator: PeerId) -> None:
        raw = await self._network.look_up(validator, POINTER_KIND, LOOK_UP_TIMEOUT_S)
        statement = None if raw is None else signed_records.read(raw).statement
        if isinstance(statement, RecordPointer):
            self._pointers[validator] = statement
            self._heard_at_s = self._now_s()

    async def _another(self, round_id: int, kept: bytes) -> bytes | None:
        """Other bytes that a validator names for a round: what a fork would look like."""
        digest = hashlib.sha256(kept).digest()
        named = [
            (round_id, validator)
            for validator, pointer in self._pointers.items()
            if pointer.round_id == round_id and pointer.record_sha256 != digest
        ]
        # Who names what nobody gives must not hold up every reader.
        await self._look_ups_of_others.refresh(named, WAIT_S)
        found = (self._others[one] for one in named if one in self._others)
        wanted = {self._pointers[validator].record_sha256 for _, validator in named}
        return next((raw for raw in found if hashlib.sha256(raw).digest() in wanted), None)

    async def _look_at_another(self, name: _Named) -> None:
        round_id, validator = name
        pointer, source = self._pointers[validator], await self._book.find(validator)
        if source is None or pointer.round_id != round_id:
            return
        try:
            raw = await self._fetch(source, round_id, pointer)
        except (StorageError, RemoteProtocolError) as error:
            _log.warning("another record of round %d is named: %s", round_id, error)
            return
        of_this_round = {one: found for one, found in self._others.items() if one[0] == round_id}
        self._others = {**of_this_round, name: raw}

    async def _ask_all(self, round_id: int) -> bytes | None:
        """The record if anybody gives a good one."""
        # One that hangs is asked last, and not waited for once others have answered.
        sources = sorted(await self._book.sources(), key=self._silent.__contains__)
        try:
            raw = await first_answer(
                [partial(self._ask, source, round_id) for source in sources], patience_s=WAIT_S
            )
            await self.keep(round_id, raw)
        except StorageError as error:
            _log.debug("record of round %d: %s", round_id, error)
            return None
        return raw

    async def _ask(self, source: Source, round_id: int) -> bytes:
        if len(self._silent) >= _MAX_SILENT:
            self._silent.clear()
        self._silent.add(source)
        try:
            raw = await self._fetch(source, round_id, self._pointer_of(round_id))
        except ObjectNotFoundError:
            self._heard_at_s = self._now_s()
            self._silent.discard(source)
            raise
        except RemoteProtocolError as error:
            raise WrongBytesError(str(error), "") from error
        self._silent.discard(source)
        return raw

    def _pointer_of(self, round_id: int) -> RecordPointer | None:
        named = (one for one in self._pointers.values() if one.round_id == round_id)
        return next(named, None)

    async def _fetch(self, source: Source, round_id: int, pointer: RecordPointer | None) -> bytes:
        object_id = self._object_id(round_id)
        num_bytes = (
            await self._network.ask_size(object_id, source, FETCH_TIMEOUT_S)
            if pointer is None
            else pointer.num_bytes
        )
        if not 0 < num_bytes <= self._rules.max_bytes:
            raise WrongBytesError(f"a record of {num_bytes} bytes", object_id.hex())
        raw = await self._network.fetch(
            object_id,
            [source],
            num_bytes=num_bytes,
            timeout_s=FETCH_TIMEOUT_S,
            named_by_hash=False,
        )
        if pointer is not None and hashlib.sha256(raw).digest() != pointer.record_sha256:
            raise WrongBytesError("not the record that the pointer names", object_id.hex())
        await asyncio.to_thread(check_certified, raw, self._rules, round_id)
        return raw
