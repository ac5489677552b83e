"""How much of an object is asked for at a time."""

import asyncio

import pytest

from shoal.node.network.connection import ChunkSink
from shoal.node.network.downloads import Download, RoomSink, Source
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.messages import Fetch
from shoal.node.network.pieces import FIRST_BYTES, AskPart, Pieces

DATA = bytes(range(256)) * 2000
ALL = len(DATA)
A, B = ("a",), ("b",)


class Link:
    """Carries so many bytes and then breaks; what one request has on its way is lost with it."""

    def __init__(self, carries_bytes: int = ALL, lost_bytes: int = 0) -> None:
        self.carries_bytes = carries_bytes
        self.lost_bytes = lost_bytes
        self.left_bytes = carries_bytes
        self.asked: list[tuple[Source, int, int]] = []

    async def ask(self, request: Fetch, left_s: float, take: ChunkSink) -> None:
        assert left_s > 0
        assert request.total_bytes == ALL
        offset, num_bytes = request.offset, request.num_bytes
        self.asked.append((request.addresses, offset, num_bytes))
        if num_bytes > self.left_bytes:
            come_bytes = max(0, self.left_bytes - self.lost_bytes)
            self.left_bytes = self.carries_bytes
            take(DATA[offset : offset + come_bytes // FIRST_BYTES * FIRST_BYTES])
            raise PeerUnavailableError("reset", "")
        self.left_bytes -= num_bytes
        take(DATA[offset : offset + num_bytes])


def pieces_over(ask: AskPart) -> Pieces:
    sink = RoomSink(memoryview(bytearray(ALL)), lambda _: None)
    return Pieces(Download(bytes(32), ALL, named_by_hash=False, sink=sink), ask)


def fetch(link: Link, most_attempts: int = 1000) -> tuple[bytes, int]:
    """Asks one source until it is there; gives the bytes and the number of attempts."""
    got = bytearray()

    async def run() -> int:
        pieces = pieces_over(link.ask)
        for number in range(1, most_attempts + 1):
            try:
                await pieces.ask(A, len(got), 60.0, got.extend)
            except PeerUnavailableError:
                continue
            return number
        pytest.fail(f"{len(got)} bytes after {most_attempts} attempts")

    num_attempts = asyncio.run(run())
    return bytes(got), num_attempts


def test_a_source_that_does_not_break_off_is_asked_once() -> None:
    link = Link()
    assert fetch(link) == (DATA, 1)
    assert link.asked == [(A, 0, ALL)]


@pytest.mark.parametrize("lost_bytes", [0, 30_000, ALL])
@pytest.mark.parametrize("carries_bytes", [FIRST_BYTES, 40_000, 65_536, 300_000])
def test_whatever_a_link_carries_at_a_time_all_of_it_comes(
    carries_bytes: int, lost_bytes: int
) -> None:
    got, num_attempts = fetch(Link(carries_bytes, lost_bytes))
    assert got == DATA
    assert num_attempts <= 2 + ALL // FIRST_BYTES


def test_pieces_grow_while_they_come_and_are_small_again_after_a_break() -> None:
    link = Link(carries_bytes=8 * FIRST_BYTES, lost_bytes=ALL)
    assert fetch(link)[0] == DATA
    sizes = [num_bytes // FIRST_BYTES for _, _, num_bytes in link.asked]
    assert sizes[1:5] == [1, 2, 4, 8]
    assert sizes[5] == 1


def test_a_break_of_one_source_is_not_held_against_another() -> None:
    link = Link(carries_bytes=ALL // 2, lost_bytes=ALL)

    async def run() -> None:
        pieces = pieces_over(link.ask)
        with pytest.raises(PeerUnavailableError, match="reset"):
            await pieces.ask(A, 0, 60.0, lambda _: None)
        link.left_bytes = ALL
        await pieces.ask(B, 0, 60.0, lambda _: None)

    asyncio.run(run())
    assert link.asked == [(A, 0, ALL), (B, 0, ALL)]


def test_a_source_that_says_done_too_early_is_not_believed() -> None:
    async def ask(_: Fetch, __: float, take: ChunkSink) -> None:
        take(b"x" * 10)

    with pytest.raises(PeerUnavailableError, match=f"10 of {ALL} bytes came"):
        asyncio.run(pieces_over(ask).ask(A, 0, 60.0, lambda _: None))
