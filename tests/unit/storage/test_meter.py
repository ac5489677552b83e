import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import ObjectNotFoundError, StorageUnavailableError
from shoal.storage.memory import MemoryStore
from shoal.storage.meter import Meter, MeteredStore, Transfer, TransferTotals
from shoal.storage.progress import note_moved, note_retry


class Ticks:
    """A clock that goes on by one second each time it is read."""

    def __init__(self):
        self._ticks: Iterator[int] = iter(range(1_000_000))

    def __call__(self) -> float:
        return float(next(self._ticks))


class FlakyStore(MemoryStore):
    """Moves part of the object, begins again, and then does what `outcome` says."""

    def __init__(self, outcome: BaseException | None):
        super().__init__()
        self.outcome = outcome

    async def get(self, key, *, max_bytes, start=0, length=None):
        note_moved(3)
        note_retry()
        if self.outcome is not None:
            raise self.outcome
        return await super().get(key, max_bytes=max_bytes, start=start, length=length)


def transfer(peer: str = "p", num_bytes: int = 1) -> Transfer:
    return Transfer(
        peer=peer,
        direction="up",
        kind="payload",
        num_bytes=num_bytes,
        started_at_s=0.0,
        first_byte_s=None,
        total_s=0.5,
        ok=True,
        num_retries=0,
    )


def test_a_put_and_a_get_are_counted_once_each():
    meter = Meter(Ticks())
    store = MeteredStore(MemoryStore(), meter).labelled(peer="peer-1", kind="payload")
    asyncio.run(store.put("a", b"12345"))
    asyncio.run(store.get("a", max_bytes=5, start=3))
    asyncio.run(store.head("a"))
    asyncio.run(store.list(""))
    asyncio.run(store.delete("a"))
    up, down = meter.drain()
    assert up == Transfer(
        peer="peer-1",
        direction="up",
        kind="payload",
        num_bytes=5,
        started_at_s=0.0,
        first_byte_s=1.0,
        total_s=2.0,
        ok=True,
        num_retries=0,
    )
    assert (down.direction, down.num_bytes, down.ok) == ("down", 2, True)


def test_worker_threads_report_to_their_own_transfer(tmp_path: Path):
    meter = Meter(lambda: 0.0)
    metered = MeteredStore(DirectoryStore(tmp_path), meter)

    async def move():
        puts = [metered.labelled(peer=f"p{n}", kind="k").put(f"a/{n}", bytes(n)) for n in range(20)]
        await asyncio.gather(*puts)
        gets = [
            metered.labelled(peer=f"p{n}", kind="k").get(f"a/{n}", max_bytes=99) for n in range(20)
        ]
        await asyncio.gather(*gets)

    asyncio.run(move())
    totals = meter.totals()
    for number in range(20):
        assert totals[f"p{number}", "up", "k"].num_bytes == number
        assert totals[f"p{number}", "down", "k"].num_bytes == number


def test_a_failed_transfer_is_counted_without_bytes():
    meter = Meter(Ticks())
    store = MeteredStore(MemoryStore(), meter).labelled(peer="p", kind="record")
    with pytest.raises(ObjectNotFoundError):
        asyncio.run(store.get("a", max_bytes=5))
    (failed,) = meter.drain()
    assert (failed.ok, failed.num_bytes, failed.first_byte_s) == (False, 0, None)


@pytest.mark.parametrize(
    "outcome", [StorageUnavailableError("gone", "a"), asyncio.CancelledError()]
)
def test_a_broken_transfer_is_counted_with_the_bytes_that_moved(outcome):
    meter = Meter(Ticks())
    store = MeteredStore(FlakyStore(outcome), meter).labelled(peer="p", kind="payload")
    with pytest.raises(type(outcome)):
        asyncio.run(store.get("a", max_bytes=5))
    (failed,) = meter.drain()
    assert (failed.ok, failed.num_bytes, failed.num_retries) == (False, 3, 1)


def test_bytes_of_failed_attempts_are_part_of_a_success():
    meter = Meter(Ticks())
    store = MeteredStore(FlakyStore(None), meter).labelled(peer="p", kind="payload")
    asyncio.run(store.put("a", b"12345"))
    asyncio.run(store.get("a", max_bytes=5))
    _, done = meter.drain()
    assert (done.ok, done.num_bytes, done.num_retries) == (True, 8, 1)


def test_marks_and_draining_tell_what_is_new():
    meter = Meter(lambda: 0.0)
    meter.record(transfer("a"))
    mark = meter.mark()
    meter.record(transfer("b"))
    assert [t.peer for t in meter.transfers_since(0)] == ["a", "b"]
    assert [t.peer for t in meter.transfers_since(mark)] == ["b"]
    assert [t.peer for t in meter.drain()] == ["a", "b"]
    assert meter.transfers_since(0) == ()
    meter.record(transfer("c"))
    assert [t.peer for t in meter.transfers_since(mark)] == ["c"]


def test_old_transfers_are_forgotten_but_stay_in_the_totals():
    meter = Meter(lambda: 0.0, num_kept=2)
    for number in range(5):
        meter.record(transfer(num_bytes=number))
    assert [t.num_bytes for t in meter.transfers_since(0)] == [3, 4]
    assert [t.num_bytes for t in meter.transfers_since(4)] == [4]
    assert meter.totals() == {
        ("p", "up", "payload"): TransferTotals(num_transfers=5, num_bytes=10, total_s=2.5)
    }


def test_threads_lose_no_transfer():
    meter = Meter(lambda: 0.0)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: meter.record(transfer()), range(2_000)))
    assert meter.totals()["p", "up", "payload"].num_transfers == 2_000
    assert meter.mark() == 2_000


def test_notes_without_a_listener_do_nothing():
    note_moved(1)
    note_retry()
