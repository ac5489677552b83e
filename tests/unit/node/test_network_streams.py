"""Objects over streams in memory: what a peer that misbehaves costs, and how it is told apart."""

import asyncio
import hashlib
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.node.network.errors import PeerUnavailableError, WrongBytesError
from shoal.node.network.object_ids import clock_id
from shoal.node.network.serving import MAX_OPEN_PER_PEER, ObjectServer
from shoal.node.network.streams import (
    ANSWER_BYTES,
    CHUNK_BYTES,
    REQUEST_BYTES,
    THANKS,
    Limits,
    ObjectRequest,
    Pace,
    Reader,
    StreamStatus,
    ask_size,
    pack_answer,
    pack_chunks,
    parse_request,
    receive,
)
from shoal.storage.errors import ObjectNotFoundError, ObjectSizeError

RUN_ID = bytes(range(32))
OBJECT_ID = b"o" * 32
TOTAL = 32 * CHUNK_BYTES + 1000
DATA = hashlib.shake_128(b"data").digest(TOTAL)
FAST = Limits(timeout_s=30.0, min_bytes_per_s=0.0, window_s=0.05)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Sent:
    """The writing half of a stream to a peer whose side the test plays."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        return


class Trickle:
    """A reading half that gives so many bytes a second."""

    def __init__(self, data: bytes, clock: Clock, bytes_per_s: int) -> None:
        self._data = data
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self.num_read = 0

    async def read(self, n: int = -1) -> bytes:
        self._clock.now_s += 1.0
        part = self._data[self.num_read : self.num_read + min(n, self._bytes_per_s)]
        self.num_read += len(part)
        return part


class Half:
    """A writing half that is the other side's reading half."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def write(self, data: bytes) -> None:
        self._reader.feed_data(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)


def stream_of(data: bytes, *, ends: bool = True) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if ends:
        reader.feed_eof()
    return reader


def sent_by_a_good_peer(data: bytes, offset: int = 0) -> bytes:
    parts = [pack_answer(StreamStatus.OK, len(data))]
    for at in range(offset, len(data), CHUNK_BYTES):
        chunk = data[at : at + CHUNK_BYTES]
        parts.append(pack_chunks(chunk))
    return b"".join(parts)


def wanted_from(offset: int = 0) -> ObjectRequest:
    return ObjectRequest(
        run_id=RUN_ID, object_id=OBJECT_ID, offset=offset, num_bytes=TOTAL - offset
    )


async def receive_all(
    reader: Reader,
    offset: int = 0,
    limits: Limits = FAST,
    clock: Clock | None = None,
    got: bytearray | None = None,
) -> tuple[bytes, Sent]:
    sent = Sent()
    got = bytearray() if got is None else got
    pace = Pace(limits, clock or asyncio.get_running_loop().time)
    async for part in receive(reader, sent, wanted_from(offset), TOTAL, pace):
        got += part
    return bytes(got), sent


@pytest.mark.parametrize("offset", [0, 1, CHUNK_BYTES, TOTAL - 1])
def test_a_good_peer_gives_the_bytes_from_the_offset_on(offset: int) -> None:
    async def run() -> None:
        got, sent = await receive_all(stream_of(sent_by_a_good_peer(DATA, offset)), offset)
        assert got == DATA[offset:]
        assert sent.data == wanted_from(offset).pack() + THANKS

    asyncio.run(run())


def at_chunk(number: int) -> int:
    return ANSWER_BYTES + number * (36 + CHUNK_BYTES)


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def with_length(raw: bytes, number: int, length: int) -> bytes:
    at = at_chunk(number)
    return raw[:at] + struct.pack("<I", length) + raw[at + 4 :]


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(lambda raw: b"", PeerUnavailableError, id="ends at once"),
        pytest.param(lambda raw: raw[:10], PeerUnavailableError, id="cut in the answer"),
        pytest.param(lambda raw: raw[: at_chunk(1)], PeerUnavailableError, id="cut between"),
        pytest.param(lambda raw: raw[:-1], PeerUnavailableError, id="cut before the last byte"),
        pytest.param(lambda raw: flipped(raw, 0), PeerUnavailableError, id="other magic"),
        pytest.param(lambda raw: flipped(raw, 10), PeerUnavailableError, id="reserved field"),
        pytest.param(lambda raw: b"\xff" * 5000, PeerUnavailableError, id="noise"),
        pytest.param(
            lambda raw: flipped(raw, at_chunk(1) + 4), WrongBytesError, id="wrong chunk hash"
        ),
        pytest.param(lambda raw: flipped(raw, len(raw) - 1), WrongBytesError, id="other byte"),
        pytest.param(
            lambda raw: with_length(raw, 0, CHUNK_BYTES + 1), WrongBytesError, id="longer chunk"
        ),
        pytest.param(lambda raw: with_length(raw, 0, 0), WrongBytesError, id="empty chunk"),
        pytest.param(lambda raw: with_length(raw, 2, 2**32 - 1), WrongBytesError, id="huge chunk"),
        pytest.param(
            lambda raw: sent_by_a_good_peer(DATA[:-1]), ObjectSizeError, id="shorter object"
        ),
        pytest.param(
            lambda raw: sent_by_a_good_peer(DATA + b"x"), ObjectSizeError, id="longer object"
        ),
        pytest.param(
            lambda raw: pack_answer(StreamStatus.OK, TOTAL) + sent_by_a_good_peer(DATA, 1)[20:],
            WrongBytesError,
            id="from another offset",
        ),
        pytest.param(
            lambda raw: pack_answer(StreamStatus.NOT_FOUND), ObjectNotFoundError, id="not found"
        ),
        pytest.param(lambda raw: pack_answer(StreamStatus.BUSY), PeerUnavailableError, id="busy"),
    ],
)
def test_a_peer_that_misbehaves_gives_one_error(
    spoil: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    async def run() -> None:
        with pytest.raises(error) as caught:
            await receive_all(stream_of(spoil(sent_by_a_good_peer(DATA))))
        assert type(caught.value) is error

    asyncio.run(run())


def test_more_than_was_asked_for_is_not_read() -> None:
    async def run() -> None:
        reader = stream_of(sent_by_a_good_peer(DATA) + b"more", ends=False)
        got, _ = await receive_all(reader)
        assert got == DATA
        assert await reader.read(100) == b"more"

    asyncio.run(run())


@settings(deadline=None, max_examples=30)
@given(st.integers(0, len(sent_by_a_good_peer(DATA)) - 1))
def test_a_stream_cut_anywhere_gives_only_whole_chunks(cut: int) -> None:
    async def run() -> None:
        got = bytearray()
        with pytest.raises(PeerUnavailableError):
            await receive_all(stream_of(sent_by_a_good_peer(DATA)[:cut]), got=got)
        assert len(got) % CHUNK_BYTES == 0
        assert DATA.startswith(bytes(got))

    asyncio.run(run())


@pytest.mark.parametrize("cut", [0, ANSWER_BYTES, at_chunk(1) + 5])
def test_a_peer_that_stops_costs_one_window(cut: int) -> None:
    async def run() -> None:
        reader = stream_of(sent_by_a_good_peer(DATA)[:cut], ends=False)
        async with asyncio.timeout(5):
            with pytest.raises(PeerUnavailableError, match="stopped"):
                await receive_all(reader)

    asyncio.run(run())


def test_one_byte_a_second_costs_one_window() -> None:
    async def run() -> None:
        clock = Clock()
        reader = Trickle(sent_by_a_good_peer(DATA), clock, bytes_per_s=1)
        limits = Limits(timeout_s=3600.0, min_bytes_per_s=1024.0, window_s=10.0)
        with pytest.raises(PeerUnavailableError, match="1 bytes/s, at least 1024"):
            await receive_all(reader, limits=limits, clock=clock)
        assert clock.now_s == 10.0

    asyncio.run(run())


def test_a_rate_just_above_the_minimum_is_enough_but_not_past_the_deadline() -> None:
    async def run() -> None:
        raw = sent_by_a_good_peer(DATA)
        clock = Clock()
        limits = Limits(timeout_s=3600.0, min_bytes_per_s=700.0, window_s=10.0)
        got, _ = await receive_all(Trickle(raw, clock, 1100), limits=limits, clock=clock)
        assert got == DATA

        clock = Clock()
        limits = Limits(timeout_s=100.0, min_bytes_per_s=700.0, window_s=10.0)
        with pytest.raises(PeerUnavailableError, match="not done within 100 s"):
            await receive_all(Trickle(raw, clock, 1100), limits=limits, clock=clock)
        assert clock.now_s <= 101.0

    asyncio.run(run())


def test_time_between_reads_is_not_held_against_the_peer() -> None:
    async def run() -> None:
        clock = Clock()
        reader = Trickle(sent_by_a_good_peer(DATA), clock, 65_536)
        limits = Limits(timeout_s=100_000.0, min_bytes_per_s=20_000.0, window_s=3.0)
        pace = Pace(limits, clock)
        async for _ in receive(reader, Sent(), wanted_from(), TOTAL, pace):
            clock.now_s += 600.0

    asyncio.run(run())


@given(st.binary(min_size=REQUEST_BYTES, max_size=REQUEST_BYTES))
def test_any_bytes_are_a_request_or_none(raw: bytes) -> None:
    found = parse_request(raw)
    assert found is None or found.pack() == raw


def test_a_request_comes_back_as_it_was() -> None:
    raw = wanted_from(7).pack()
    assert parse_request(raw) == wanted_from(7)
    for at in (0, 8, 10):
        assert parse_request(flipped(raw, at)) is None
    assert parse_request(raw[:-8] + b"\xff" * 8) is None


def server_of(tmp_path: Path, **changes: float) -> ObjectServer:
    path = tmp_path / "object"
    path.write_bytes(DATA)
    values = {"max_streams": 4, "max_streams_per_peer": 2, "min_bytes_per_s": 0.0, **changes}
    server = ObjectServer(run_id=RUN_ID, **values)  # type: ignore[arg-type] # by name
    server.add(OBJECT_ID, path, TOTAL)
    return server


async def ask_server(server: ObjectServer, wanted: ObjectRequest, peer: str = "a") -> bytes:
    """One whole exchange of a good receiver with the server."""
    there, here = asyncio.StreamReader(), asyncio.StreamReader()
    answering = asyncio.create_task(server.answer(peer, there, Half(here)))
    pace = Pace(FAST, asyncio.get_running_loop().time)
    got = bytearray()
    try:
        async for part in receive(here, Half(there), wanted, TOTAL, pace):
            got += part
    finally:
        there.feed_eof()
        await asyncio.wait((answering,))
    answering.result()
    return bytes(got)


def test_the_server_gives_what_it_has_from_any_offset(tmp_path: Path) -> None:
    async def run() -> None:
        server = server_of(tmp_path)
        assert await ask_server(server, wanted_from()) == DATA
        assert await ask_server(server, wanted_from(CHUNK_BYTES + 3)) == DATA[CHUNK_BYTES + 3 :]
        assert server.num_bytes_up == 2 * TOTAL - CHUNK_BYTES - 3

        there, here = asyncio.StreamReader(), asyncio.StreamReader()
        answering = asyncio.create_task(server.answer("a", there, Half(here)))
        pace = Pace(FAST, asyncio.get_running_loop().time)
        assert await ask_size(here, Half(there), RUN_ID, OBJECT_ID, pace) == TOTAL
        await answering

    asyncio.run(run())


async def answer_to(server: ObjectServer, request: bytes, peer: str = "a") -> StreamStatus:
    there, sent = stream_of(request + THANKS), Sent()
    await server.answer(peer, there, sent)
    assert len(sent.data) == ANSWER_BYTES
    return StreamStatus(struct.unpack_from("<H", sent.data, 8)[0])


def test_the_server_refuses_what_it_must(tmp_path: Path) -> None:
    async def run() -> None:
        server = server_of(tmp_path)
        size = ObjectRequest(run_id=RUN_ID, object_id=OBJECT_ID, offset=0, num_bytes=0)
        assert await answer_to(server, size.pack()) is StreamStatus.OK
        for changes, status in (
            ({"run_id": bytes(32)}, StreamStatus.OTHER_RUN),
            ({"object_id": bytes(32)}, StreamStatus.NOT_FOUND),
            ({"num_bytes": TOTAL + 1}, StreamStatus.BAD_REQUEST),
            ({"offset": 1, "num_bytes": TOTAL}, StreamStatus.BAD_REQUEST),
            ({"offset": TOTAL + 1}, StreamStatus.BAD_REQUEST),
        ):
            values = {"run_id": RUN_ID, "object_id": OBJECT_ID, "offset": 0, "num_bytes": 0}
            wanted = ObjectRequest(**{**values, **changes})  # type: ignore[arg-type] # by name
            assert await answer_to(server, wanted.pack()) is status
        assert await answer_to(server, bytes(REQUEST_BYTES)) is StreamStatus.BAD_REQUEST
        server.remove(OBJECT_ID)
        server.remove(OBJECT_ID)
        assert await answer_to(server, size.pack()) is StreamStatus.NOT_FOUND

    asyncio.run(run())


def test_slots_are_bounded_per_peer_and_in_all_and_come_back(tmp_path: Path) -> None:
    async def run() -> None:
        server = server_of(tmp_path, max_streams=3)
        size = ObjectRequest(run_id=RUN_ID, object_id=OBJECT_ID, offset=0, num_bytes=0)
        whole = wanted_from().pack()

        async def hold(peer: str, count: int) -> asyncio.Task[None]:
            reader = stream_of(whole, ends=False)
            task = asyncio.create_task(server.answer(peer, reader, Sent()))
            async with asyncio.timeout(10):
                while server._busy.total() < count:  # noqa: ASYNC110 - polls
                    await asyncio.sleep(0.001)
            return task

        async def status_of(peer: str) -> StreamStatus:
            sent = Sent()
            await server.answer(peer, stream_of(whole + THANKS), sent)
            return StreamStatus(struct.unpack_from("<H", sent.data, 8)[0])

        holders = [await hold("a", 1), await hold("a", 2)]
        assert await status_of("a") is StreamStatus.BUSY
        # Sizes and small objects do not wait for payloads.
        assert await answer_to(server, size.pack(), "a") is StreamStatus.OK
        assert await status_of("b") is StreamStatus.OK
        holders.append(await hold("b", 3))
        assert await status_of("c") is StreamStatus.BUSY
        for task in holders:
            task.cancel()
        await asyncio.wait(holders)
        for peer in "abc":
            assert await status_of(peer) is StreamStatus.OK
        assert not server._busy
        assert not server._busy_small

    asyncio.run(run())


def test_a_peer_whose_streams_send_nothing_leaves_room_for_others(tmp_path: Path) -> None:
    async def run() -> None:
        server = server_of(tmp_path)
        silent = [
            asyncio.create_task(server.answer("bad", asyncio.StreamReader(), Sent()))
            for _ in range(200)
        ]
        await asyncio.sleep(0)
        assert sum(not task.done() for task in silent) == MAX_OPEN_PER_PEER
        assert await ask_server(server, wanted_from(), "good") == DATA
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)
        assert not server._open
        assert await ask_server(server, wanted_from(), "bad") == DATA

    asyncio.run(run())


def test_a_taker_that_stops_loses_its_stream_and_slot(tmp_path: Path) -> None:
    class Stuck(Sent):
        async def drain(self) -> None:
            if len(self.data) > ANSWER_BYTES:
                await asyncio.sleep(3600)

    async def run() -> None:
        server = server_of(tmp_path)
        server._limits = FAST
        with pytest.raises(PeerUnavailableError, match="stopped"):
            await server.answer("a", stream_of(wanted_from().pack(), ends=False), Stuck())
        assert server._busy.total() == 0

    asyncio.run(run())


def test_a_file_that_became_shorter_ends_the_stream(tmp_path: Path) -> None:
    async def run() -> None:
        server = server_of(tmp_path)
        (tmp_path / "object").write_bytes(DATA[:-1])
        with pytest.raises(PeerUnavailableError, match="shorter"):
            await server.answer("a", stream_of(wanted_from().pack() + THANKS), Sent())

    asyncio.run(run())


def test_only_files_of_the_given_length_are_served(tmp_path: Path) -> None:
    server = server_of(tmp_path)
    with pytest.raises(ValueError, match="bytes in the file"):
        server.add(OBJECT_ID, tmp_path / "object", TOTAL - 1)
    with pytest.raises(FileNotFoundError):
        server.add(OBJECT_ID, tmp_path / "other", TOTAL)
    with pytest.raises(ValueError, match="bytes"):
        server.add(b"short", tmp_path / "object", TOTAL)
    assert server.num_objects == 1


def test_files_of_a_folder_are_served_by_their_names_and_links_are_not(tmp_path: Path) -> None:
    async def run() -> None:
        folder, data = tmp_path / "folder", b"record" * 9
        folder.mkdir()
        server = ObjectServer(
            run_id=RUN_ID,
            max_streams=1,
            max_streams_per_peer=1,
            min_bytes_per_s=0.0,
            folders=(tmp_path / "missing", folder),
        )
        for number, name in enumerate(("{}", "{}+", "{}.tmp", "link")):
            object_id = bytes([number]) * 32
            (folder / name.format(object_id.hex())).write_bytes(data)
        (folder / (bytes([3]) * 32).hex()).symlink_to(folder / "link")
        wanted = StreamStatus.OK, StreamStatus.OK, StreamStatus.NOT_FOUND, StreamStatus.NOT_FOUND
        for number, status in enumerate(wanted):
            size = ObjectRequest(
                run_id=RUN_ID, object_id=bytes([number]) * 32, offset=0, num_bytes=0
            )
            assert await answer_to(server, size.pack()) is status, number

    asyncio.run(run())


def test_the_clock_is_the_length_of_an_object(tmp_path: Path) -> None:
    async def run() -> None:
        server, sent = server_of(tmp_path), Sent()
        size = ObjectRequest(run_id=RUN_ID, object_id=clock_id(RUN_ID), offset=0, num_bytes=0)
        before_ms = int(time.time() * 1000)
        await server.answer("a", stream_of(size.pack() + THANKS), sent)
        [found_ms] = struct.unpack_from("<Q", sent.data, 12)
        assert before_ms <= found_ms <= time.time() * 1000

    asyncio.run(run())
