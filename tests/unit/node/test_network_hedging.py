"""Peers that are silent: what waiting for them costs, in virtual time."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from shoal.node.network import fetching, hedging
from shoal.node.network.connection import ChunkSink
from shoal.node.network.downloads import Download, RoomSink, Source
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.fetching import DROPPED_PAUSE_S, Fetching
from shoal.node.network.hedging import PAUSE_S, first_answer
from shoal.storage.errors import ObjectNotFoundError, StorageError
from tests.support.virtual_time import VirtualLoop, run_virtual

DATA = bytes(range(256)) * 40
OBJECT_ID = hashlib.sha256(DATA).digest()
ALL = len(DATA)
DIAL_S = 15.0
STEP = 100


class Peer:
    """A source: silent so long, then gives so many bytes a time, and then breaks off."""

    def __init__(
        self,
        *,
        silent_s: float = 0.0,
        num_bytes: int = ALL,
        error: StorageError | None = None,
        data: bytes = DATA,
        sign_s: float | None = None,
        chunk_s: float = 0.0,
    ) -> None:
        self.silent_s = silent_s
        self.num_bytes = num_bytes
        self.error = error
        self.data = data
        self.sign_s = silent_s if sign_s is None else sign_s
        self.chunk_s = chunk_s
        self.asked_at_s: list[float] = []
        self.num_cancelled = 0

    async def give(self, offset: int, take: ChunkSink) -> None:
        try:
            await asyncio.sleep(self.sign_s)
            if self.num_bytes:
                take(b"")
            await asyncio.sleep(self.silent_s - self.sign_s)
            end = min(ALL, offset + self.num_bytes)
            for at in range(offset, end, STEP):
                take(self.data[at : min(at + STEP, end)])
                await asyncio.sleep(self.chunk_s)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        if offset + self.num_bytes < ALL:
            raise PeerUnavailableError("the connection to the peer broke", "")


def dead() -> Peer:
    """Nobody hears of a packet that is sent there."""
    return Peer(silent_s=DIAL_S, num_bytes=0, error=PeerUnavailableError("no dial", ""))


def fetch(*peers: Peer, num_known: int | None = None, timeout_s: float = 60.0) -> float:
    """Fetches from the first ones, and from the others where more are wanted; gives the seconds."""

    async def run(loop: VirtualLoop) -> float:
        begin_s, room = loop.time(), bytearray(ALL)
        sink = RoomSink(memoryview(room), lambda _: None)
        download = Download(OBJECT_ID, ALL, named_by_hash=True, sink=sink)
        sources: dict[Source, Peer] = {(str(n),): peer for n, peer in enumerate(peers)}

        async def ask(source: Source, offset: int, left_s: float, take: ChunkSink) -> None:
            assert left_s > 0
            sources[source].asked_at_s.append(loop.time() - begin_s)
            await sources[source].give(offset, take)

        async def more() -> list[Source]:
            return list(sources)

        known = list(sources)[:num_known]
        await Fetching(download, known, ask, more if num_known is not None else None).run(timeout_s)
        assert bytes(room) == DATA
        assert len(asyncio.all_tasks()) == 1
        return loop.time() - begin_s

    return run_virtual(run)


def test_a_dead_source_costs_a_pause_and_not_a_dial() -> None:
    bad, good, third = dead(), Peer(), Peer()
    assert fetch(bad, good, third) == PAUSE_S
    assert (bad.num_cancelled, third.asked_at_s) == (1, [])


def test_many_dead_sources_cost_a_pause_each() -> None:
    assert fetch(*(dead() for _ in range(6)), Peer()) == 6 * PAUSE_S


@pytest.mark.parametrize("num_known", [0, 1])
def test_others_are_looked_for_while_the_first_one_is_silent(num_known: int) -> None:
    assert fetch(dead(), Peer(), num_known=num_known) == PAUSE_S


def test_who_is_only_slow_is_not_asked_twice_and_wins_if_the_others_are_worse() -> None:
    slow = Peer(silent_s=4.0)
    assert fetch(slow, dead(), dead()) == 4.0
    assert slow.asked_at_s == [0.0]


def test_after_a_sign_of_life_nobody_else_is_asked() -> None:
    # It waits for its turn, or for our own cap.
    waits, other = Peer(sign_s=0.5, silent_s=8.0), Peer()
    assert fetch(waits, other) == 8.0
    assert other.asked_at_s == []


def test_one_that_refuses_is_followed_at_once() -> None:
    empty = Peer(num_bytes=0, error=ObjectNotFoundError("", ""))
    assert fetch(empty, Peer(num_bytes=0, error=PeerUnavailableError("busy", "")), Peer()) == 0.0


def test_a_source_that_breaks_after_it_gave_bytes_is_asked_again_at_once() -> None:
    breaks = Peer(num_bytes=1000)
    assert fetch(breaks) == 0.0
    assert len(breaks.asked_at_s) == 11


def test_a_source_that_breaks_is_not_held_up_by_a_dead_one() -> None:
    breaks, bad = Peer(num_bytes=1000), dead()
    # The dead one is asked where the other stands behind it, and then left alone.
    assert fetch(bad, breaks) == PAUSE_S
    assert len(bad.asked_at_s) == 1


def test_a_source_that_breaks_lets_a_better_one_in() -> None:
    breaks, good = Peer(num_bytes=1000), Peer()
    assert fetch(breaks, good) == 0.0
    assert (len(breaks.asked_at_s), len(good.asked_at_s)) == (1, 1)


def test_a_source_without_bytes_is_asked_again_after_a_pause() -> None:
    class Later(Peer):
        async def give(self, offset: int, take: ChunkSink) -> None:
            if len(self.asked_at_s) < 4:
                raise PeerUnavailableError("busy", "")
            await super().give(offset, take)

    busy = Later()
    assert fetch(busy) == pytest.approx(3 * fetching.PAUSE_S)


def test_a_dropped_source_comes_back_when_the_chosen_one_has_nothing_more() -> None:
    slow = Peer(silent_s=3.0)
    leaves = Peer(num_bytes=500, error=ObjectNotFoundError("", ""))
    took_s = fetch(slow, leaves)
    assert took_s < DROPPED_PAUSE_S
    assert slow.num_cancelled == 1


def test_sources_that_break_after_a_mixed_failure_do_not_undo_each_other() -> None:
    liar = Peer(num_bytes=3000, data=bytes(ALL), chunk_s=0.01)
    good = Peer(num_bytes=3000, chunk_s=0.01)
    assert fetch(liar, good) < 10.0


@pytest.mark.parametrize("peer", [dead(), Peer(silent_s=3600.0), Peer(num_bytes=STEP, chunk_s=9.0)])
def test_the_time_limit_is_kept_to_the_second(peer: Peer) -> None:
    async def run(loop: VirtualLoop) -> float:
        begin_s = loop.time()
        with pytest.raises(PeerUnavailableError, match="not fetched within 40 s"):
            await _fetch_in_loop(peer)
        return loop.time() - begin_s

    async def _fetch_in_loop(peer: Peer) -> None:
        sink = RoomSink(memoryview(bytearray(ALL)), lambda _: None)
        download = Download(OBJECT_ID, ALL, named_by_hash=True, sink=sink)

        async def ask(_: Source, offset: int, __: float, take: ChunkSink) -> None:
            await peer.give(offset, take)

        await Fetching(download, [("a",)], ask).run(40.0)

    assert run_virtual(run) == pytest.approx(40.0)


Ask = Callable[[], Awaitable[str]]


def after(seconds: float, answer: str | StorageError) -> Ask:
    async def ask() -> str:
        await asyncio.sleep(seconds)
        if isinstance(answer, str):
            return answer
        raise answer

    return ask


def race(*asks: Ask, patience_s: float | None = None) -> tuple[str, float]:
    async def run(loop: VirtualLoop) -> tuple[str, float]:
        begin_s = loop.time()
        try:
            found = await first_answer(asks, patience_s=patience_s)
        except StorageError as error:
            found = type(error).__name__
        assert len(asyncio.all_tasks()) == 1
        return found, loop.time() - begin_s

    return run_virtual(run)


NOTHING = partial(after, answer=ObjectNotFoundError("", ""))
AWAY = partial(after, answer=PeerUnavailableError("", ""))


def test_the_first_answer_counts() -> None:
    assert race(after(1.0, "a"), after(0.0, "b")) == ("a", 1.0)
    assert race(after(9.0, "a"), after(1.0, "b")) == ("b", hedging.PAUSE_S + 1.0)
    assert race(AWAY(0.5), after(1.0, "b")) == ("b", 1.5)
    assert race(after(2.0, "a"), after(9.0, "b")) == ("a", 2.0)


def test_nothing_is_said_only_if_nobody_is_away() -> None:
    assert race() == ("ObjectNotFoundError", 0.0)
    assert race(NOTHING(0.0), NOTHING(1.0)) == ("ObjectNotFoundError", 1.0)
    assert race(NOTHING(0.0), AWAY(15.0)) == ("PeerUnavailableError", 15.0)
    assert race(NOTHING(0.0), AWAY(15.0), patience_s=2.0) == ("ObjectNotFoundError", 2.0)
    assert race(AWAY(15.0), after(15.0, "b"), patience_s=2.0) == ("b", PAUSE_S + 15.0)
