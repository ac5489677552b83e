"""One object from several sources, the node's side of the socket, and what is kept."""

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.node.network import fetching, packing
from shoal.node.network.connection import ChunkSink, Connection, ConnectionLostError
from shoal.node.network.downloads import Copies, Download, RoomSink, Source
from shoal.node.network.errors import PeerUnavailableError, RecordRefusedError, WrongBytesError
from shoal.node.network.failures import raise_failure, to_failure
from shoal.node.network.fetching import Fetching
from shoal.node.network.frames import Frame, FrameKind, pack_head, read_frame
from shoal.node.network.kept_objects import KeptObject, KeptObjects
from shoal.node.network.messages import Answer, Done, FailCode, Failed, Ping, Size
from shoal.node.network.p2p_store import object_id_of
from shoal.protocol.errors import ErrorCode, RemoteProtocolError
from shoal.storage.errors import (
    InvalidKeyError,
    ObjectNotFoundError,
    ObjectSizeError,
    StorageError,
    StorageFullError,
)
from shoal.storage.progress import Progress, keeping

DATA = bytes(range(256)) * 4
OBJECT_ID = hashlib.sha256(DATA).digest()
STEP = 100


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)


class Peers:
    """Sources that each give so many bytes a time and then fail in their own way."""

    def __init__(self, **plans: "Plan") -> None:
        self.plans = plans
        self.asked: list[tuple[str, int]] = []

    async def ask(self, source: Source, offset: int, left_s: float, take: ChunkSink) -> None:
        [name] = source
        self.asked.append((name, offset))
        data, num_given, error = self.plans[name]
        for at in range(offset, min(len(data), offset + num_given), STEP):
            take(data[at : min(at + STEP, offset + num_given)])
        if error is not None:
            raise error()


Plan = tuple[bytes, int, Callable[[], StorageError] | None]


def away() -> StorageError:
    return PeerUnavailableError("away", "")


ALL = len(DATA)
OTHER = bytes(ALL)


def fetch(peers: Peers, *names: str, timeout_s: float = 5.0) -> bytes:
    room = bytearray(ALL)
    told = [0]

    async def run() -> None:
        sink = RoomSink(memoryview(room), told.append)
        download = Download(OBJECT_ID, ALL, named_by_hash=True, sink=sink)
        await Fetching(download, tuple((name,) for name in names), peers.ask).run(timeout_s)

    asyncio.run(run())
    assert told[-1] == ALL
    return bytes(room)


def test_the_first_source_that_has_it_is_enough() -> None:
    peers = Peers(a=(DATA, ALL, None), b=(DATA, ALL, None))
    assert fetch(peers, "a", "b") == DATA
    assert peers.asked == [("a", 0)]


def test_the_next_source_goes_on_where_the_last_one_stopped() -> None:
    peers = Peers(a=(DATA, 300, away), b=(DATA, 400, away), c=(DATA, ALL, None))
    assert fetch(peers, "a", "b", "c") == DATA
    assert peers.asked == [("a", 0), ("b", 300), ("c", 700)]


def test_a_source_that_is_away_is_asked_again() -> None:
    peers = Peers(a=(DATA, 300, away))
    assert fetch(peers, "a") == DATA
    assert peers.asked == [("a", 0), ("a", 300), ("a", 600), ("a", 900)]


def test_sources_without_it_are_not_asked_again() -> None:
    peers = Peers(
        a=(b"", 0, lambda: ObjectNotFoundError("", "")), b=(b"", 0, lambda: ObjectSizeError("", ""))
    )
    with pytest.raises(ObjectSizeError):
        fetch(peers, "a", "b")
    assert peers.asked == [("a", 0), ("b", 0)]
    with pytest.raises(PeerUnavailableError, match="no source"):
        fetch(Peers())


def test_a_source_of_wrong_bytes_is_left_out_and_all_begins_again() -> None:
    peers = Peers(a=(OTHER, ALL, None), b=(DATA, ALL, None))
    assert fetch(peers, "a", "b") == DATA
    assert peers.asked == [("a", 0), ("b", 0)]


def test_after_a_mixed_failure_the_liar_is_found_without_mixing() -> None:
    peers = Peers(a=(DATA, 300, away), b=(OTHER, ALL, None), c=(DATA, ALL, None))
    assert fetch(peers, "a", "b", "c") == DATA
    # Mixed bytes of a and b are wrong; c alone gives it.
    assert peers.asked == [("a", 0), ("b", 300), ("c", 0)]


def test_only_liars_is_wrong_bytes() -> None:
    peers = Peers(a=(OTHER, 300, away), b=(OTHER, ALL, None))
    with pytest.raises((WrongBytesError, PeerUnavailableError)):
        fetch(peers, "a", "b", timeout_s=0.3)
    assert ("b", 0) in peers.asked
    with pytest.raises(WrongBytesError):
        fetch(Peers(b=(OTHER, ALL, None)), "b")


def test_a_source_that_gives_too_much_is_wrong() -> None:
    with pytest.raises(WrongBytesError, match="more than"):
        fetch(Peers(a=(DATA + b"x" * 500, ALL + 500, None)), "a")


def test_a_source_that_says_done_too_early_is_not_believed() -> None:
    peers = Peers(a=(DATA, 300, None))
    assert fetch(peers, "a") == DATA
    assert len(peers.asked) == 4


def test_the_time_limit_holds_and_says_why() -> None:
    started_s = time.monotonic()
    with pytest.raises(PeerUnavailableError, match="not fetched within 0 s: away"):
        fetch(Peers(a=(b"", 0, away)), "a", timeout_s=0.2)
    assert time.monotonic() - started_s < 3


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from((DATA, OTHER)), st.integers(1, ALL + 200), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_sources_do_only_the_right_bytes_come_out(
    plans: list[tuple[bytes, int, bool]],
) -> None:
    peers = Peers(
        **{
            str(number): (data, count, away if goes else None)
            for number, (data, count, goes) in enumerate(plans)
        }
    )
    try:
        assert fetch(peers, *peers.plans, timeout_s=0.05) == DATA
    except StorageError:
        return


def test_bytes_of_failed_attempts_are_noted_too() -> None:
    progress = Progress(time.monotonic)
    with keeping(progress):
        fetch(Peers(a=(OTHER, ALL, None), b=(DATA, ALL, None)), "a", "b")
    assert (progress.num_bytes, progress.num_retries) == (2 * ALL, 1)


def test_room_is_begun_again_from_its_start() -> None:
    room = bytearray(11)
    told: list[int] = []
    sink = RoomSink(memoryview(room), told.append)
    sink.add(b"wrong bytes")
    sink.tell()
    sink.clear()
    sink.add(b"right")
    sink.tell()
    assert room == b"right bytes"
    assert told == [11, 0, 5]


def fetch_payload(peers: Peers, *names: str) -> tuple[bytes, list[int]]:
    """As `fetch`, an object that `a` answers for; gives also what the reader was told."""
    room, told = bytearray(ALL), list[int]()

    async def run() -> None:
        copies = Copies(authors=(("a",),), check=lambda _, data: bytes(data) == DATA)
        sink = RoomSink(memoryview(room), told.append)
        download = Download(OBJECT_ID, ALL, named_by_hash=False, sink=sink, copies=copies)
        await Fetching(download, tuple((name,) for name in names), peers.ask).run(5.0)

    asyncio.run(run())
    return bytes(room), told


def test_what_the_author_gives_is_shown_as_it_comes_and_as_it_is() -> None:
    assert fetch_payload(Peers(a=(OTHER, ALL, None)), "a") == (OTHER, [*range(100, ALL, 100), ALL])


def test_what_others_give_is_shown_when_it_is_whole_and_right() -> None:
    assert fetch_payload(Peers(b=(DATA, ALL, None)), "b") == (DATA, [ALL])
    peers = Peers(b=(OTHER, ALL, None), c=(DATA, ALL, None))
    assert fetch_payload(peers, "b", "c") == (DATA, [0, ALL])
    with pytest.raises(WrongBytesError):
        fetch_payload(Peers(b=(OTHER, ALL, None)), "b")


def test_a_liar_behind_the_author_does_not_spoil_what_the_author_gave() -> None:
    peers = Peers(a=(DATA, 300, away), b=(OTHER, ALL, None), c=(DATA, ALL, None))
    room, told = fetch_payload(peers, "a", "b", "c")
    assert room == DATA
    assert told == [100, 200, 300, 0, ALL]


class Process:
    """The other end of a node's socket, played by the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> Frame:
        frame = await read_frame(self.reader)
        assert frame is not None
        return frame

    def send(self, kind: FrameKind, request_id: int, body: bytes) -> None:
        self.writer.write(pack_head(Frame(kind, request_id, body)) + body)

    def answer(self, request_id: int, answer: Answer) -> None:
        self.send(FrameKind.ANSWER, request_id, packing.pack(answer))


def with_process(test: Callable[[Connection, Process], "asyncio.Future[None] | object"]) -> None:
    async def run() -> None:
        import socket  # noqa: PLC0415 - for this only

        ours, theirs = socket.socketpair()
        connection = Connection(*await asyncio.open_connection(sock=ours))
        process = Process(*await asyncio.open_connection(sock=theirs))
        try:
            async with asyncio.timeout(5):
                await test(connection, process)  # type: ignore[misc] # tests are coroutines
        finally:
            connection.close()
            process.writer.close()

    asyncio.run(run())


def test_answers_find_their_requests_in_any_order() -> None:
    async def test(connection: Connection, process: Process) -> None:
        asked = [asyncio.create_task(connection.ask(Ping(), 5)) for _ in range(3)]
        ids = [(await process.request()).request_id for _ in asked]
        assert len(set(ids)) == 3
        for number in (2, 0, 1):
            process.answer(ids[number], Size(num_bytes=number))
        assert [await one for one in asked] == [Size(num_bytes=n) for n in range(3)]

    with_process(test)


def test_chunks_come_before_the_answer_and_late_ones_are_dropped() -> None:
    async def test(connection: Connection, process: Process) -> None:
        got: list[bytes] = []
        asked = asyncio.create_task(connection.ask(Ping(), 5, got.append))
        request_id = (await process.request()).request_id
        process.send(FrameKind.CHUNK, request_id, b"one")
        process.send(FrameKind.CHUNK, request_id, b"two")
        process.answer(request_id, Done())
        process.send(FrameKind.CHUNK, request_id, b"late")
        process.answer(request_id, Done())
        assert await asked == Done()
        await asyncio.sleep(0.01)
        assert got == [b"one", b"two"]

    with_process(test)


def test_a_request_that_nobody_waits_for_is_cancelled_over_there() -> None:
    async def test(connection: Connection, process: Process) -> None:
        with pytest.raises(PeerUnavailableError, match="no answer within"):
            await connection.ask(Ping(), 0.01)
        asked = asyncio.create_task(connection.ask(Ping(), 5))
        await asyncio.sleep(0.01)
        asked.cancel()
        frames = [await process.request() for _ in range(4)]
        kinds = [FrameKind.REQUEST, FrameKind.CANCEL] * 2
        assert [frame.kind for frame in frames] == kinds
        assert frames[0].request_id == frames[1].request_id != frames[2].request_id

    with_process(test)


def test_what_the_taker_of_chunks_raises_ends_the_request() -> None:
    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def test(connection: Connection, process: Process) -> None:
        asked = asyncio.create_task(connection.ask(Ping(), 5, full))
        request_id = (await process.request()).request_id
        process.send(FrameKind.CHUNK, request_id, b"one")
        with pytest.raises(OSError, match="No space"):
            await asked
        assert (await process.request()).kind is FrameKind.CANCEL

    with_process(test)


@pytest.mark.parametrize("noise", [b"", b"\xff" * 20, bytes([1]) + bytes(8)])
def test_the_end_of_the_connection_ends_every_request(noise: bytes) -> None:
    async def test(connection: Connection, process: Process) -> None:
        asked = [asyncio.create_task(connection.ask(Ping(), 5)) for _ in range(3)]
        for _ in asked:
            await process.request()
        process.writer.write(noise)
        process.writer.close()
        for one in asked:
            with pytest.raises(ConnectionLostError):
                await one
        await connection.ended()
        with pytest.raises(ConnectionLostError):
            await connection.ask(Ping(), 5)

    with_process(test)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (ObjectNotFoundError("a", ""), FailCode.NOT_FOUND, ObjectNotFoundError),
        (ObjectSizeError("a", ""), FailCode.SIZE, ObjectSizeError),
        (WrongBytesError("a", ""), FailCode.WRONG_BYTES, WrongBytesError),
        (PeerUnavailableError("a", ""), FailCode.UNAVAILABLE, PeerUnavailableError),
        (ConnectionResetError("a"), FailCode.UNAVAILABLE, PeerUnavailableError),
        (TimeoutError(), FailCode.UNAVAILABLE, PeerUnavailableError),
        (RemoteProtocolError(ErrorCode.E_RUN, "a"), FailCode.REFUSED, RecordRefusedError),
        (ValueError("a"), FailCode.BAD_REQUEST, ValueError),
        (ZeroDivisionError("a"), FailCode.INTERNAL, PeerUnavailableError),
    ],
)
def test_errors_cross_the_socket(error: Exception, code: FailCode, kind: type[Exception]) -> None:
    failed = to_failure(error)
    assert failed.code == code
    assert failed.detail
    with pytest.raises(kind) as caught:
        raise_failure(failed)
    assert type(caught.value) is kind


def test_a_code_of_another_version_means_not_now() -> None:
    with pytest.raises(PeerUnavailableError):
        raise_failure(Failed(code="new", detail="x"))


def test_the_oldest_objects_make_room(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    folder.mkdir()
    (folder / "left over").write_bytes(b"x")
    kept = KeptObjects(folder, max_bytes=100)
    assert list(folder.iterdir()) == []
    for number in range(3):
        assert kept.make_room(30) == ()
        kept.add(bytes([number]), kept.write(bytes([number]), bytes(30)))
    theirs = tmp_path / "theirs"
    theirs.write_bytes(bytes(500))
    kept.add(b"file", KeptObject(theirs, 500, is_ours=False))
    assert kept.make_room(50) == (b"\0", b"\1")
    assert [key for key, _ in kept.items()] == [b"\2", b"file"]
    assert [path.name for path in folder.iterdir()] == ["02"]
    with pytest.raises(StorageFullError):
        kept.make_room(101)
    kept.drop(b"file")
    kept.drop(b"file")
    assert theirs.exists()
    kept.clear()
    assert not folder.exists()


def test_a_key_gives_its_id_or_an_error() -> None:
    assert object_id_of(f"run/copies/{'ab' * 32}") == b"\xab" * 32
    for key in ("run/copies/short", f"run/{'AB' * 32}", f"../{'ab' * 32}", f"{'ab' * 32}/x"):
        with pytest.raises(InvalidKeyError):
            object_id_of(key)
