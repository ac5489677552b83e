"""The one place where bytes are counted.

`MeteredStore` wraps any store; `labelled` gives a view of it that is itself an `ObjectStore`, so
what uses the store does not know that it is watched, and nothing can move bytes without a label.

Guarantees: every `put` and `get` leaves exactly one `Transfer`, also when it fails or is cancelled,
with the bytes that really moved (0 if none). Safe to use from several threads. Memory is bounded:
totals are kept per label, single transfers only up to a limit.

`head`, `list` and `delete` move no objects and are not counted. Does not limit bandwidth itself:
it says whose account a transfer goes to (`allowance`), and by its label whether it is bulk or
belongs to the control plane, which `head`, `list` and `delete` always do.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Lock

from shoal.storage.allowance import CONTROL_KINDS, Bandwidth, Direction, paid_by
from shoal.storage.filling import Arrived, read_into
from shoal.storage.object_store import DEFAULT_PAGE_KEYS, ListPage, ObjectInfo, ObjectStore
from shoal.storage.pacing import Kind
from shoal.storage.progress import Progress, keeping

DEFAULT_NUM_KEPT = 65_536
SERVED = "served"
"""The kind of what others took from this node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One `put` or `get`, finished or failed.

    Attributes:
        peer: Whose object it is, as the caller named it.
        direction: "up" for a put, "down" for a get.
        kind: What was moved, as the caller named it: payload, announcement, record, copy, blob.
        num_bytes: Bytes that really moved, those of failed attempts included.
        started_at_s: When it began, by the meter's clock.
        first_byte_s: Seconds from the beginning to the first byte; None if none moved.
        total_s: Seconds from the beginning to the end.
        ok: Whether it did what was asked.
        num_retries: Attempts after the first, as far as the store reports them.
    """

    peer: str
    direction: Direction
    kind: str
    num_bytes: int
    started_at_s: float
    first_byte_s: float | None
    total_s: float
    ok: bool
    num_retries: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferTotals:
    """All transfers of one label since the meter began.

    Attributes:
        num_transfers: All of them.
        num_failed: Those that did not do what was asked.
        num_bytes: Bytes that really moved.
        num_retries: Attempts after the first.
        total_s: Sum of their times in seconds; parallel transfers count each.
    """

    num_transfers: int = 0
    num_failed: int = 0
    num_bytes: int = 0
    num_retries: int = 0
    total_s: float = 0.0

    def plus(self, transfer: Transfer) -> "TransferTotals":
        """Give the totals with one more transfer.

        Args:
            transfer: The one to add.

        Returns:
            New totals.
        """
        return TransferTotals(
            num_transfers=self.num_transfers + 1,
            num_failed=self.num_failed + (not transfer.ok),
            num_bytes=self.num_bytes + transfer.num_bytes,
            num_retries=self.num_retries + transfer.num_retries,
            total_s=self.total_s + transfer.total_s,
        )


Label = tuple[str, Direction, str]


class Meter:
    """Collects transfers; safe to use from several threads.

    Args:
        now_s: A clock in seconds that does not go back.
        num_kept: How many single transfers are kept; older ones stay in the totals only.
        bandwidth: What the counted transfers may take of the link; None: what they can.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        num_kept: int = DEFAULT_NUM_KEPT,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.now_s = now_s
        self.bandwidth = bandwidth
        self._lock = Lock()
        self._kept: deque[Transfer] = deque(maxlen=num_kept)
        self._num_recorded = 0
        self._totals: dict[Label, TransferTotals] = {}

    def record(self, transfer: Transfer) -> None:
        """Add one transfer.

        Args:
            transfer: Finished or failed.
        """
        label = (transfer.peer, transfer.direction, transfer.kind)
        with self._lock:
            self._kept.append(transfer)
            self._num_recorded += 1
            self._totals[label] = self._totals.get(label, TransferTotals()).plus(transfer)

    def mark(self) -> int:
        """Give a mark for `transfers_since`: this moment.

        Returns:
            How many transfers have been recorded so far.
        """
        with self._lock:
            return self._num_recorded

    def transfers_since(self, mark: int) -> tuple[Transfer, ...]:
        """Give the transfers recorded after a mark, oldest first.

        Args:
            mark: From `mark`; 0 for the beginning.

        Returns:
            Those of them that are still kept: neither drained nor pushed out by `num_kept`.
        """
        with self._lock:
            num_gone = self._num_recorded - len(self._kept)
            return tuple(islice(self._kept, max(mark - num_gone, 0), None))

    def drain(self) -> tuple[Transfer, ...]:
        """Hand over the kept transfers, oldest first, and keep them no longer.

        Returns:
            What `transfers_since(0)` would give; the totals stay.
        """
        with self._lock:
            drained = tuple(self._kept)
            self._kept.clear()
            return drained

    def totals(self) -> dict[Label, TransferTotals]:
        """Sum up by (peer, direction, kind) since the meter began.

        Returns:
            A copy that the caller may keep.
        """
        with self._lock:
            return dict(self._totals)


class MeteredStore:
    """A store whose bytes are counted; use it through `labelled`.

    Args:
        store: Where the bytes really are.
        meter: Who counts.
    """

    def __init__(self, store: ObjectStore, meter: Meter) -> None:
        self._store = store
        self._meter = meter

    def labelled(self, *, peer: str, kind: str) -> ObjectStore:
        """Give a view of the store whose transfers carry this label.

        Args:
            peer: Whose objects will be moved.
            kind: What they are.

        Returns:
            A store with the guarantees of the wrapped one.
        """
        return _LabelledStore(self._store, self._meter, peer, kind)


class _LabelledStore:
    def __init__(self, store: ObjectStore, meter: Meter, peer: str, kind: str) -> None:
        self._store = store
        self._meter = meter
        self._peer = peer
        self._kind = kind
        self._account: Kind = "control" if kind in CONTROL_KINDS else "bulk"

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        with self._counted("up"):
            await self._store.put(key, data, overwrite=overwrite)

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        with self._counted("down"):
            return await self._store.get(key, max_bytes=max_bytes, start=start, length=length)

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        with self._counted("down"):
            await read_into(self._store, key, room, arrived)

    async def head(self, key: str) -> ObjectInfo:
        with self._as_control():
            return await self._store.head(key)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        with self._as_control():
            return await self._store.list(prefix, after=after, limit=limit)

    async def delete(self, key: str) -> None:
        with self._as_control():
            await self._store.delete(key)

    def _as_control(self) -> AbstractContextManager[None]:
        return paid_by(self._meter.bandwidth, "control")

    @contextmanager
    def _counted(self, direction: Direction) -> Iterator[None]:
        progress = Progress(self._meter.now_s)
        started_at_s = self._meter.now_s()
        ok = False
        try:
            with keeping(progress), paid_by(self._meter.bandwidth, self._account):
                yield
            ok = True
        finally:
            # In a finally, so that a cancelled transfer is counted too.
            first_at_s = progress.first_byte_at_s
            self._meter.record(
                Transfer(
                    peer=self._peer,
                    direction=direction,
                    kind=self._kind,
                    num_bytes=progress.num_bytes,
                    started_at_s=started_at_s,
                    first_byte_s=None if first_at_s is None else first_at_s - started_at_s,
                    total_s=self._meter.now_s() - started_at_s,
                    ok=ok,
                    num_retries=progress.num_retries,
                )
            )
