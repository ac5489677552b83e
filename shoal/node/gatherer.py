"""Gather: fetching and checking the others' payloads while they appear, one round at a time.

Guarantees: one bad peer costs that peer only, with a code; a payload is downloaded, verified and
decoded as soon as its announcement is seen, many at once, checks in worker threads; no more bytes
are read than the manifest's exact payload length; the round's record is noticed here too. A failure
of this node's own link or store is nobody's fault: it is retried and never becomes a rejection.

Does not do: decide which payloads count (the record does), or aggregate.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from functools import partial

from shoal.compression import CheckedBody
from shoal.node.errors import ResourceError
from shoal.node.gathered import (
    Candidates,
    Gathered,
    Rejected,
    check_announced,
    is_peer_hex,
)
from shoal.node.receiving import Received, Receiving
from shoal.node.run_context import BodyChecker, RunContext
from shoal.node.store_keys import RUN_STORE
from shoal.node.telemetry.names import EventName
from shoal.protocol.announcement import (
    MAX_ANNOUNCEMENT_BYTES,
    AnnouncementType,
    VerifiedAnnouncement,
    Where,
    read_announcement,
)
from shoal.protocol.chain import ChainHead
from shoal.protocol.errors import ErrorCode, PayloadError, RemoteProtocolError
from shoal.protocol.identity import PeerId, parse_peer_key
from shoal.protocol.payload import Payload, PayloadContext
from shoal.protocol.record import VerifiedRecord, read_record
from shoal.protocol.record_body import CountedPayload
from shoal.storage.allowance import QuotaReachedError
from shoal.storage.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    RefusedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from shoal.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

Work = Callable[[], Coroutine[None, None, None]]

_COMPLAIN_EVERY_S = 10.0
_MAX_WASTED = 3
"""Payloads' worth of one peer's bytes that came to nothing before it is tried now and then only."""
_QUIET_POLLS = 10
"""A download that has brought nothing for so many polls is not waited for once a copy exists."""


class RoundGather:
    """The gather of one round. `poll` looks until the record is there or it is cancelled."""

    def __init__(
        self,
        run: RunContext,
        head: ChainHead,
        *,
        on_record: Callable[[], None] = lambda: None,
        keep_copies: bool = False,
    ) -> None:
        self.run_context = run
        self.head = head
        self.round_id = head.round_id + 1
        self.accepted: dict[PeerId, Gathered] = {}
        self.rejected: dict[str, Rejected] = {}
        self.attending: set[PeerId] = set()
        self.record: VerifiedRecord | None = None
        self.bad_record: bytes | None = None
        """Bytes under the record's key that are no valid record."""
        self.changed = asyncio.Event()
        self._on_record = on_record
        self._keep_copies = keep_copies
        self._candidates = Candidates(run)
        self._places: dict[PeerId, Where] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By key: what is being read."""
        self._receiving: dict[PeerId, Receiving] = {}
        self._num_wasted: Counter[str] = Counter()
        """Bytes of downloads that broke off, by hex key."""
        self._fatal: ResourceError | None = None
        self._complained_at_s: dict[str, float] = {}
        """By what the complaint is about: one stalled peer must not hide what is said of others."""
        checker = BodyChecker(run.layout)
        self._context = PayloadContext(
            round_id=self.round_id,
            base_state=head.state,
            seen={},
            check_body=checker,
            start_body=checker.start,
        )

    async def poll(self) -> None:
        """Looks until the round's record is known; cancel to stop.

        Downloads of payloads that the record counts go on after it; `close` ends them.

        Raises:
            ResourceError: this machine or the store has no room left.
        """
        try:
            while self.record is None:
                await self._poll_once()
                if self._fatal is not None:
                    raise self._fatal
                await asyncio.sleep(self.run_context.limits.poll_s)
        finally:
            record = self.record
            self._cancel_but(() if record is None else record.record.counted)

    async def close(self) -> None:
        """Ends all downloads."""
        self._cancel_but(())
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _cancel_but(self, counted: Iterable[CountedPayload]) -> None:
        kept = {self.run_context.keys.published(self.round_id, entry.peer) for entry in counted}
        for key, task in self._tasks.items():
            if key not in kept:
                task.cancel()

    async def _poll_once(self) -> None:
        try:
            await self.look_for_record()
            # A list that hangs must not keep the record from being seen.
            async with asyncio.timeout(self.run_context.limits.transfer_s):
                await self._look_for_announcements()
        except StorageFullError as error:
            self._fatal = ResourceError(str(error))
        except (StorageError, TimeoutError) as error:
            self._complain(f"the store cannot be read: {str(error) or 'no list in time'}")

    async def look_for_record(self) -> VerifiedRecord | None:
        """Reads the round's record once, if it is there and valid.

        Raises:
            StorageError: the store did not answer.
        """
        run = self.run_context
        store = run.store.labelled(peer="validators", kind="record")
        try:
            raw = await self._read(
                store, run.keys.record(self.round_id), run.record_rules.max_bytes
            )
        except ObjectNotFoundError:
            return None
        except ObjectTooLargeError as error:
            self._refuse_record(b"", ErrorCode.E_LEN, str(error))
            return None
        try:
            self.record = read_record(raw, run.record_rules, self.head)
        except RemoteProtocolError as error:
            self._refuse_record(raw, error.code, error.detail)
            return None
        self.changed.set()
        self._on_record()
        return self.record

    def _refuse_record(self, raw: bytes, code: ErrorCode, detail: str) -> None:
        if self.bad_record != raw:
            self.bad_record = raw
            self.run_context.log.emit(
                EventName.RECORD_REJECTED, round_id=self.round_id, code=code, detail=detail
            )
            logger.warning("round %d: record refused: %s: %s", self.round_id, code, detail)

    async def _look_for_announcements(self) -> None:
        run = self.run_context
        if self._keep_copies:
            for key in await self._candidates.list(run.keys.attending_prefix(self.round_id)):
                self._spawn(key, partial(self._read_attending, key))
        for key in await self._candidates.list(run.keys.published_prefix(self.round_id)):
            if key != run.keys.published(self.round_id, run.me):
                self._spawn(key, partial(self._fetch, key, run.clock.now_s()))

    def _spawn(self, key: str, work: Work) -> None:
        if not self._candidates.take(key):
            return
        task = asyncio.get_running_loop().create_task(self._guarded(key, work))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._forget_task(key, done))

    async def _guarded(self, key: str, work: Work) -> None:
        """The per-peer boundary: what nobody foresaw costs this peer only, and is counted."""
        try:
            await work()
        except Exception as error:
            logger.warning("unforeseen failure with %s", key.rsplit("/", 1)[1][:16], exc_info=True)
            self._reject(key, ErrorCode.E_INTERNAL, repr(error))

    def _forget_task(self, key: str, done: "asyncio.Task[None]") -> None:
        if self._tasks.get(key) is done:
            del self._tasks[key]

    async def _read_attending(self, key: str) -> None:
        peer_hex = key.rsplit("/", 1)[1]
        try:
            read = await self._read_announcement(key, peer_hex, AnnouncementType.ATTENDING)
        except RemoteProtocolError as error:
            self._reject(key, error.code, error.detail)
        except StorageError:
            self._candidates.give_back(key)
        else:
            self.attending.add(read.peer)
            self.changed.set()

    async def _read_announcement(
        self, key: str, peer_hex: str, kind: AnnouncementType
    ) -> VerifiedAnnouncement:
        """A peer's announcement.

        Raises:
            RemoteProtocolError: the announcement is not what it must be.
            StorageError: it could not be read.
        """
        run = self.run_context
        store = run.store.labelled(peer=peer_hex[:16], kind="announcement")
        try:
            raw = await self._read(store, key, MAX_ANNOUNCEMENT_BYTES)
        except ObjectTooLargeError as error:
            raise RemoteProtocolError(ErrorCode.E_LEN, str(error)) from error
        verified = read_announcement(raw, run.payload_rules, self.round_id)
        found = verified.announcement.type
        if verified.peer.key.hex() != peer_hex or found is not kind:
            detail = f"announcement of {verified.peer.short}, {found}, under {peer_hex}, {kind}"
            raise RemoteProtocolError(ErrorCode.E_OBJECT_KEY, detail)
        return verified

    async def _fetch(self, key: str, seen_at_s: float) -> None:
        """One peer's whole way."""
        peer_hex = key.rsplit("/", 1)[1]
        try:
            read = await self._read_announcement(key, peer_hex, AnnouncementType.PUBLISHED)
            payload_id, where = read.announcement.payload_id, read.announcement.where
            self._places[read.peer] = where
            received = await self.download(where, read.peer, payload_id)
            check_announced(received.payload, read.peer, payload_id)
            if self._keep_copies:
                await self.keep_copy(payload_id, received.raw)
        except RemoteProtocolError as error:
            self._reject(key, error.code, error.detail)
        except StorageFullError as error:
            self._fatal = ResourceError(str(error))
        except (StorageError, TimeoutError) as error:
            # Our link or a payload that is still on its way: look again at the next poll.
            self._candidates.give_back(key, self._pause_s(peer_hex))
            self._complain(f"payload of {peer_hex[:16]} not readable yet: {error}")
        else:
            self._accept_received(received, seen_at_s)
            await self._serve_again(received)

    def _pause_s(self, peer_hex: str) -> float:
        """None, unless its payload broke off again and again: whose fault that is nobody knows.

        A place that always fails at the last byte must not take this node's link for a whole round.
        """
        limit = _MAX_WASTED * self.run_context.manifest.payload_bytes
        return self.run_context.limits.settle_s if self._num_wasted[peer_hex] > limit else 0.0

    async def download(self, where: Where, peer: PeerId, payload_id: bytes) -> Received:
        """Reads a payload where it was announced, and validates it.

        Raises:
            PayloadError: the place is not allowed, or what was read is not a valid payload of this
                round.
            StorageError: it could not be read.
        """
        run = self.run_context
        store = run.read_at(where).labelled(peer=peer.short, kind="payload")
        key = run.keys.payload_at(where.provider, self.round_id, peer, payload_id)
        try:
            return await self._receive(store, key, peer)
        except RefusedError as error:
            if where.provider == RUN_STORE:
                raise
            # A peer's own server that redirects or encodes: that peer's fault.
            raise PayloadError(ErrorCode(error.code), error.message, peer) from error

    async def _receive(self, store: ObjectStore, key: str, peer: PeerId) -> Received:
        receiving = Receiving(self.run_context, self._context)
        self._receiving[peer] = receiving
        try:
            return await receiving.run(store, key)
        except TimeoutError as error:
            limit_s = self.run_context.limits.transfer_s
            self._num_wasted[peer.key.hex()] += receiving.num_arrived
            raise StorageUnavailableError(f"{key}: not read within {limit_s} s", key) from error
        except StorageError:
            self._num_wasted[peer.key.hex()] += receiving.num_arrived
            raise
        finally:
            # What is refused must not keep its room for the rest of the round.
            if self._receiving.get(peer) is receiving:
                del self._receiving[peer]

    async def _read(self, store: ObjectStore, key: str, max_bytes: int) -> bytes:
        """One object, within the time of one transfer.

        Raises:
            StorageError: it could not be read, or not in time: the link's fault, nobody else's.
        """
        limit_s = self.run_context.limits.transfer_s
        try:
            async with asyncio.timeout(limit_s):
                return await store.get(key, max_bytes=max_bytes)
        except TimeoutError as error:
            raise StorageUnavailableError(f"{key}: not read within {limit_s} s", key) from error

    async def keep_copy(self, payload_id: bytes, raw: bytes | memoryview) -> None:
        """Stores a payload by its id, so that it survives its author going away.

        Raises:
            StorageError: it could not be written.
            TimeoutError: not in time.
        """
        store = self.run_context.store.labelled(peer="validators", kind="copy")
        try:
            async with asyncio.timeout(self.run_context.limits.transfer_s):
                await store.put(self.run_context.keys.copy(payload_id), raw)
        except (ObjectExistsError, QuotaReachedError):
            # It is there, or this node has nothing left to send: no fault of the payload's.
            return

    def accept_own(self, payload: Payload[CheckedBody]) -> None:
        """Notes this node's own payload of this round."""
        self.accepted[payload.peer] = Gathered(
            payload=payload,
            announced_at_s=self.run_context.clock.now_s(),
            latency_s=0.0,
            download_s=0.0,
            check_s=0.0,
        )
        self.changed.set()

    def _accept_received(self, received: Received, announced_at_s: float) -> None:
        latency_s = self.run_context.clock.now_s() - announced_at_s
        peer = received.payload.peer
        self.accepted[peer] = Gathered(
            payload=received.payload,
            announced_at_s=announced_at_s,
            latency_s=latency_s,
            download_s=received.download_s,
            check_s=received.check_s,
        )
        self.changed.set()
        self.run_context.log.emit(
            EventName.PAYLOAD_ACCEPTED,
            round_id=self.round_id,
            peer=peer.text,
            latency_s=latency_s,
            download_s=received.download_s,
            check_s=received.check_s,
        )

    async def _serve_again(self, received: Received) -> None:
        """Others may ask for it when its author is gone; only what was verified is passed on."""
        try:
            await self.run_context.serve_again(received.payload.payload_id, received.raw)
        except (StorageError, OSError) as error:
            logger.debug("round %d: a payload is not served again: %s", self.round_id, error)

    def forget(self, peer: PeerId) -> None:
        """Drops an accepted payload: what is in the store under its name is another one."""
        self.accepted.pop(peer, None)

    def _reject(self, key: str, code: ErrorCode, detail: str) -> None:
        peer_hex = key.rsplit("/", 1)[1]
        self._candidates.refuse(key)
        self.rejected[peer_hex] = Rejected(peer=peer_hex, code=code, detail=detail)
        self.changed.set()
        self.run_context.log.emit(
            EventName.PAYLOAD_REJECTED,
            round_id=self.round_id,
            peer=peer_hex,
            code=code,
            detail=detail,
        )
        logger.warning("round %d: %s refused: %s: %s", self.round_id, peer_hex[:16], code, detail)

    def failed_peers(self) -> frozenset[PeerId]:
        """Rejected peers whose key is a key: nothing more is expected of them this round."""
        return frozenset(
            parse_peer_key(bytes.fromhex(peer_hex))
            for peer_hex in self.rejected
            if is_peer_hex(peer_hex)
        )

    async def fetch_counted(self, entry: CountedPayload) -> Payload[CheckedBody]:
        """A payload that the record lists; waits for it as long as it takes, never skips it."""
        await self._while_arriving(entry.peer)
        while True:
            known = self.accepted.get(entry.peer)
            if known is not None and known.payload.payload_id == entry.payload_id:
                return known.payload
            for read in (self._read_copy, self._read_announced):
                try:
                    received = await read(entry)
                except (RemoteProtocolError, StorageError) as error:
                    self._complain(f"counted payload of {entry.peer.short}: {error}")
                    continue
                if received.payload.payload_id == entry.payload_id:
                    await self._serve_again(received)
                    return received.payload
            await asyncio.sleep(self.run_context.limits.poll_s)

    async def _while_arriving(self, peer: PeerId) -> None:
        """Waits for a download that was under way when the record came, while bytes come in."""
        task = self._tasks.get(self.run_context.keys.published(self.round_id, peer))
        pause_s = min(
            _QUIET_POLLS * self.run_context.limits.poll_s, self.run_context.limits.round_s
        )
        num_before = -1
        while task is not None and not task.done():
            receiving = self._receiving.get(peer)
            num_arrived = 0 if receiving is None else receiving.num_arrived
            if num_arrived == num_before:
                return
            num_before = num_arrived
            await asyncio.wait({task}, timeout=pause_s)

    async def _read_copy(self, entry: CountedPayload) -> Received:
        store = self.run_context.store.labelled(peer=entry.peer.short, kind="copy")
        return await self._receive(store, self.run_context.keys.copy(entry.payload_id), entry.peer)

    async def _read_announced(self, entry: CountedPayload) -> Received:
        where = self._places.get(entry.peer, Where(provider=RUN_STORE))
        return await self.download(where, entry.peer, entry.payload_id)

    def _complain(self, message: str) -> None:
        now_s, subject = self.run_context.clock.now_s(), message.partition(":")[0]
        if now_s - self._complained_at_s.get(subject, 0.0) >= _COMPLAIN_EVERY_S:
            self._complained_at_s[subject] = now_s
            self.run_context.log.emit(EventName.WARNING, round_id=self.round_id, message=message)
            logger.warning("round %d: %s", self.round_id, message)
