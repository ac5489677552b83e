"""The S3 store against a server that misbehaves, in each way that we know of."""

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable

import pytest

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    ObjectSizeError,
    ObjectTooLargeError,
    RefusedError,
    StorageUnavailableError,
)
from shoal.storage.progress import Progress, keeping
from shoal.storage.s3 import S3Config, S3Limits, S3Store
from tests.support.s3_bad_server import BadServer, Behaviour, Exchange, Stored, noise, serve, until

DATA = noise(7, 1_000_003)
FAST = S3Limits(
    deadline_s=20.0,
    connect_timeout_s=1.0,
    read_timeout_s=1.0,
    min_bytes_per_s=10_000.0,
    min_rate_window_s=0.5,
    first_wait_s=0.01,
    part_bytes=5 << 20,
)
IDENTIFYING = {"authorization", "x-amz-security-token", "cookie", "proxy-authorization"}


@pytest.fixture(autouse=True)
def secrets_in_the_environment(monkeypatch, tmp_path):
    """What an anonymous reader must never send."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token")
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "config").write_text("[default]\naws_access_key_id = AKIACANARY\n")
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://user:canary@127.0.0.1:1")


def run(
    behaviour: Behaviour,
    work: Callable[[S3Store, BadServer], Awaitable[object]],
    limits: S3Limits = FAST,
) -> tuple[object, BadServer]:
    """Let a reader do something against a server; check that it kept its secrets."""

    async def scenario() -> tuple[object, BadServer]:
        async with BadServer(behaviour) as server:
            config = S3Config(endpoint_url=server.url, bucket="bucket", allow_loopback=True)
            store = S3Store(config, None, limits=limits)
            try:
                return await work(store, server), server
            finally:
                store.close()
                assert_anonymous(server)

    return asyncio.run(scenario())


def assert_anonymous(server: BadServer) -> None:
    assert server.seen
    for seen in server.seen:
        text = repr(seen.headers).lower() + seen.target
        assert not IDENTIFYING & {name.lower() for name, _ in seen.headers}
        assert "canary" not in text
        assert "signature" not in text
        assert seen.header("accept-encoding") == "identity"


def get(max_bytes: int = 5 << 20, **options) -> Callable[[S3Store, BadServer], Awaitable[bytes]]:
    return lambda store, _: store.get("rounds/7/a", max_bytes=max_bytes, **options)


def failing(expected: type[Exception], **options):
    async def work(store: S3Store, server: BadServer) -> Exception:
        with pytest.raises(expected) as caught:
            await get(**options)(store, server)
        assert "canary" not in str(caught.value)
        return caught.value

    return work


def honest(data: bytes) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(*serve(exchange.seen, Stored(data, {})))

    return behaviour


def cutting(data: bytes, num_bytes: int) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        status, headers, body = serve(exchange.seen, Stored(data, {}))
        if exchange.seen.method == "HEAD":
            await exchange.answer(status, headers, body)
            return
        await exchange.answer(status, {**headers, "Content-Length": len(body)}, body[:num_bytes])
        exchange.close()

    return behaviour


def test_a_reader_asks_once_for_a_small_object_and_keeps_the_connection():
    async def twice(store: S3Store, server: BadServer) -> bytes:
        await get()(store, server)
        return await get()(store, server)

    data, server = run(honest(DATA), twice)
    assert data == DATA
    assert [seen.method for seen in server.seen] == ["GET", "GET"]
    assert server.num_connections == 1


def test_a_connection_that_is_cut_every_64_kib_is_taken_up_where_it_broke():
    progress = Progress(time.monotonic)

    async def work(store: S3Store, server: BadServer) -> bytes:
        with keeping(progress):
            return await get()(store, server)

    data, server = run(cutting(DATA, 65_536), work)
    assert data == DATA
    starts = [seen.range[0] for seen in server.seen[1:] if seen.range]
    assert starts == [65_536 * number for number in range(1, 16)]
    assert all(seen.header("if-match") == Stored(DATA, {}).etag for seen in server.seen[1:])
    assert progress.num_bytes == len(DATA)
    assert progress.num_retries == 15


@pytest.mark.parametrize("max_bytes", [5 << 20, 100 << 20])
def test_a_server_that_breaks_off_after_a_few_bytes_each_time_is_given_up(max_bytes):
    _, server = run(cutting(DATA, 10), failing(StorageUnavailableError, max_bytes=max_bytes))
    num_reads = [seen.method for seen in server.seen].count("GET")
    assert num_reads == FAST.num_attempts


def test_parallel_ranges_are_taken_up_too():
    data = noise(8, (11 << 20) + 1)
    found, server = run(cutting(data, 2 << 20), get(max_bytes=len(data)))
    assert found == data
    assert server.num_bytes_sent < len(data) + 20_000
    assert [seen.method for seen in server.seen].count("HEAD") == 1


def test_a_server_that_stops_in_the_middle_is_left_and_asked_for_the_rest():
    async def stalling(exchange: Exchange) -> None:
        status, headers, body = serve(exchange.seen, Stored(DATA, {}))
        if exchange.number == 0:
            await exchange.answer(status, {**headers, "Content-Length": len(body)}, body[:100_000])
            await asyncio.sleep(30)
        await exchange.answer(status, headers, body)

    started_at_s = time.monotonic()
    data, server = run(stalling, get())
    assert data == DATA
    assert server.seen[1].range == (100_000, len(DATA) - 1)
    assert time.monotonic() - started_at_s < 10


async def trickling(exchange: Exchange) -> None:
    await exchange.answer(200, {"Content-Length": len(DATA)})
    for _ in range(1000):
        await exchange.raw(b"x")
        await asyncio.sleep(0.05)


def test_a_server_that_trickles_is_given_up_and_others_finish_meanwhile():
    async def work(slow: S3Store, _: BadServer) -> None:
        async with BadServer(honest(DATA)) as other:
            config = S3Config(endpoint_url=other.url, bucket="bucket", allow_loopback=True)
            good = S3Store(config, None, limits=FAST)
            trickle = asyncio.create_task(slow.get("a", max_bytes=len(DATA)))
            for _number in range(3):
                assert await good.get("a", max_bytes=len(DATA)) == DATA
            assert not trickle.done()
            with pytest.raises(StorageUnavailableError, match="bytes per second expected"):
                await trickle
            good.close()

    started_at_s = time.monotonic()
    _, server = run(trickling, work)
    assert time.monotonic() - started_at_s < 10
    assert len(server.seen) == 1
    assert server.num_bytes_sent < 500


def test_a_head_that_trickles_ends_with_the_deadline():
    async def behaviour(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\nX-A: ")
        while True:
            await exchange.raw(b"b")
            await asyncio.sleep(0.05)

    started_at_s = time.monotonic()
    limits = S3Limits(deadline_s=1.0, read_timeout_s=0.4)
    run(behaviour, failing(StorageUnavailableError), limits)
    assert 0.8 < time.monotonic() - started_at_s < 8


def test_endless_interim_answers_end():
    async def behaviour(exchange: Exchange) -> None:
        while True:
            await exchange.raw(b"HTTP/1.1 100 Continue\r\n\r\n")

    _, server = run(behaviour, failing(StorageUnavailableError))
    assert len(server.seen) == FAST.num_attempts


def test_an_object_of_50_gb_is_refused_before_its_body():
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, {"Content-Length": 50 << 30, "ETag": '"e"'})
        while True:
            await exchange.raw(bytes(65_536))

    for max_bytes in (1000, 100 << 20):
        _, server = run(behaviour, failing(ObjectTooLargeError, max_bytes=max_bytes))
        assert server.num_bytes_sent < 16 << 20


def test_bytes_after_the_announced_length_are_not_read():
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, {"Content-Length": 10}, b"0123456789" + bytes(5000))

    async def twice(store: S3Store, server: BadServer) -> list[bytes]:
        return [await get(max_bytes=10)(store, server) for _ in range(2)]

    data, _ = run(behaviour, twice)
    assert data == [b"0123456789"] * 2


def test_a_body_shorter_than_announced_is_never_returned():
    async def behaviour(exchange: Exchange) -> None:
        if exchange.seen.range is None:
            await exchange.answer(200, {"Content-Length": 1000}, bytes(500))
        exchange.close()

    _, server = run(behaviour, failing(StorageUnavailableError))
    assert len(server.seen) <= FAST.num_attempts + 1


@pytest.mark.parametrize("length", ["", "-5", "1e3", "5, 6", "0x10", "٣", "9" * 30])
def test_a_length_that_is_none_is_refused(length):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.raw(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode())
        await exchange.raw(b"hello")
        exchange.close()

    run(behaviour, failing((ObjectSizeError, StorageUnavailableError)))  # type: ignore[arg-type]


def test_a_body_without_a_length_is_refused_however_long_it_is():
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, {"Content-Length": None, "Transfer-Encoding": "chunked"})
        while True:
            await exchange.raw(b"10000\r\n" + bytes(65_536) + b"\r\n")

    _, server = run(behaviour, failing(ObjectSizeError))
    assert server.num_bytes_sent < 16 << 20


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_not_followed(status):
    async def redirecting(exchange: Exchange) -> None:
        await exchange.answer(status, {"Location": f"{exchange.server.url}/elsewhere"})

    error, server = run(redirecting, failing(RefusedError))
    assert isinstance(error, RefusedError)
    assert (error.code, error.key) == ("E_HTTP_REDIRECT", "rounds/7/a")
    assert len(server.seen) == 1
    _, server = run(redirecting, failing(RefusedError, max_bytes=100 << 20))
    assert len(server.seen) == 1


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity", "gzip, gzip", "aws-chunked", ""])
def test_a_content_encoding_is_refused(encoding):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, {"Content-Encoding": encoding}, gzip.compress(bytes(1 << 20)))

    error, server = run(behaviour, failing(RefusedError))
    assert isinstance(error, RefusedError)
    assert error.code == "E_HTTP_ENCODING"
    assert len(server.seen) == 1


def test_a_page_of_html_is_bytes_like_any_others():
    page = b"<html>please log in</html>"

    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, {"Content-Type": "text/html"}, page)

    assert run(behaviour, get())[0] == page
    run(behaviour, failing(ObjectTooLargeError, max_bytes=10))


def busy(num_times: int, status: int, headers: dict[str, object]) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        if exchange.number < num_times:
            await exchange.answer(status, headers)
        else:
            await exchange.answer(*serve(exchange.seen, Stored(DATA, {})))

    return behaviour


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_when_it_says(status):
    started_at_s = time.monotonic()
    data, server = run(busy(1, status, {"Retry-After": 1}), get())
    assert data == DATA
    assert len(server.seen) == 2
    assert 1.0 <= time.monotonic() - started_at_s < 10


def test_a_busy_server_is_asked_more_often_than_a_broken_one():
    data, server = run(busy(FAST.num_attempts + 3, 503, {}), get())
    assert data == DATA
    assert len(server.seen) == FAST.num_attempts + 4


def test_a_server_that_stays_busy_costs_one_deadline():
    limits = S3Limits(deadline_s=1.0, first_wait_s=0.1)
    started_at_s = time.monotonic()
    _, server = run(busy(10**6, 503, {}), failing(StorageUnavailableError), limits)
    assert 0.3 < time.monotonic() - started_at_s < 8
    assert len(server.seen) < 10


def test_a_wait_beyond_the_deadline_is_not_begun():
    started_at_s = time.monotonic()
    _, server = run(busy(1, 429, {"Retry-After": 3600}), failing(StorageUnavailableError))
    assert time.monotonic() - started_at_s < 10
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [408, 500, 502, 504, 522])
def test_a_passing_failure_is_retried(status):
    assert run(busy(2, status, {}), get())[0] == DATA


def test_resets_are_retried_until_they_are_too_many():
    def resetting(num_times: int) -> Behaviour:
        async def behaviour(exchange: Exchange) -> None:
            if exchange.number < num_times:
                exchange.reset()
            else:
                await exchange.answer(*serve(exchange.seen, Stored(DATA, {})))

        return behaviour

    assert run(resetting(FAST.num_attempts - 1), get())[0] == DATA
    _, server = run(resetting(10**6), failing(StorageUnavailableError))
    assert len(server.seen) == FAST.num_attempts


@pytest.mark.parametrize("has_etags", [True, False])
def test_two_bodies_are_never_mixed_when_the_server_tells_them_apart(has_etags):
    bodies = [bytes([letter]) * len(DATA) for letter in b"ab"]

    async def alternating(exchange: Exchange) -> None:
        stored = Stored(bodies[exchange.number % 2], {})
        exchange.seen.headers = [h for h in exchange.seen.headers if h[0].lower() != "if-match"]
        status, headers, body = serve(exchange.seen, stored)
        if not has_etags:
            del headers["ETag"]
        await exchange.answer(status, {**headers, "Content-Length": len(body)}, body[:500_000])
        exchange.close()

    if has_etags:
        error, server = run(alternating, failing(ObjectSizeError))
        assert "replaced" in str(error)
        assert len(server.seen) == 6
    else:
        # Whoever needs the right bytes compares a digest; the length is right.
        data, _ = run(alternating, get())
        assert isinstance(data, bytes)
        assert len(data) == len(DATA)


def test_an_object_replaced_once_is_read_anew():
    new = DATA[::-1]

    async def behaviour(exchange: Exchange) -> None:
        stored = Stored(DATA if exchange.number == 0 else new, {})
        status, headers, body = serve(exchange.seen, stored)
        sent = body[:300_000] if exchange.number == 0 else body
        await exchange.answer(status, {"Content-Length": len(body), **headers}, sent)
        if exchange.number == 0:
            exchange.close()

    data, server = run(behaviour, get())
    assert data == new
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    "lie",
    [
        {"Content-Range": "bytes 0-9/1000003"},
        {"Content-Range": "bytes 5-104/1000004"},
        {"Content-Range": "bytes */1000003"},
        {"Content-Range": None},
        {"Content-Length": 50},
        {"Content-Length": 101},
    ],
)
def test_a_range_that_is_not_the_one_asked_for_is_refused(lie):
    async def behaviour(exchange: Exchange) -> None:
        status, headers, body = serve(exchange.seen, Stored(DATA, {}))
        if exchange.seen.method == "GET":
            headers = {**headers, **lie}
        await exchange.answer(status, headers, body)

    run(behaviour, failing(ObjectSizeError, start=5, length=100))


def test_a_server_without_ranges_is_refused_and_its_body_not_read():
    async def behaviour(exchange: Exchange) -> None:
        exchange.seen.headers = [h for h in exchange.seen.headers if h[0].lower() != "range"]
        await exchange.answer(*serve(exchange.seen, Stored(DATA, {})))

    run(behaviour, failing(ObjectSizeError, start=5, length=100))


def test_a_huge_head_is_not_read_to_its_end():
    async def behaviour(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\n")
        while True:
            await exchange.raw(b"X-A: " + b"y" * 65_000 + b"\r\n")

    _, server = run(behaviour, failing(StorageUnavailableError))
    assert len(server.seen) == FAST.num_attempts


@pytest.mark.parametrize("status", [200, 404, 500])
def test_an_endless_body_around_the_object_is_bounded(status):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(status, {"Content-Length": None})
        while True:
            await exchange.raw(bytes(1 << 20))

    async def work(store: S3Store, _: BadServer) -> None:
        with pytest.raises(StorageUnavailableError):
            await store.list("")

    limits = S3Limits(deadline_s=5.0, num_attempts=2, first_wait_s=0.01)
    _, server = run(behaviour, work, limits)
    assert server.num_bytes_sent < 2 * (32 << 20)


@pytest.mark.parametrize(
    "body", [b"", b"no xml", b"<a", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"]
)
def test_a_listing_that_is_none_is_not_an_empty_store(body):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, {}, body)

    async def work(store: S3Store, _: BadServer) -> None:
        with pytest.raises(StorageUnavailableError):
            await store.list("")

    run(behaviour, work)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(404, ObjectNotFoundError), (403, AccessDeniedError), (401, AccessDeniedError)],
)
def test_a_head_that_is_forbidden_is_not_an_object_that_is_not_there(status, expected):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(status)

    async def work(store: S3Store, _: BadServer) -> None:
        with pytest.raises(expected):
            await store.head("a")

    _, server = run(behaviour, work)
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [304, 412, 416])
def test_an_answer_to_a_condition_that_was_not_set_is_a_refusal(status):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(status)

    async def work(store: S3Store, _: BadServer) -> None:
        for call in (store.get("a", max_bytes=5), store.head("a"), store.list("")):
            with pytest.raises(AccessDeniedError):
                await call

    run(behaviour, work)


@pytest.mark.parametrize("status", [204, 404])
def test_deleting_what_is_not_there_is_no_error(status):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(status, {"Content-Length": None} if status == 204 else {})

    run(behaviour, lambda store, _: store.delete("a"))


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": 5},
        {"Content-Length": 5, "Last-Modified": "yesterday"},
        {"Content-Length": "x", "Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"},
    ],
)
def test_a_head_that_makes_no_sense_is_unavailable(headers):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, headers)

    async def work(store: S3Store, _: BadServer) -> None:
        with pytest.raises(StorageUnavailableError):
            await store.head("a")

    run(behaviour, work)


def test_a_call_that_is_cancelled_stops_reading():
    async def endless(exchange: Exchange) -> None:
        await exchange.answer(200, {"Content-Length": 1 << 30})
        while True:
            await exchange.raw(bytes(1 << 14))
            await asyncio.sleep(0.01)

    async def work(store: S3Store, server: BadServer) -> int:
        task = asyncio.create_task(store.get("a", max_bytes=1 << 30))
        await until(lambda: server.num_bytes_sent >= 1 << 17)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.3)
        before = server.num_bytes_sent
        await asyncio.sleep(0.3)
        return server.num_bytes_sent - before

    limits = S3Limits(part_bytes=1 << 30)
    assert run(endless, work, limits)[0] == 0


def test_a_closed_store_answers_that_it_is_closed():
    async def work(store: S3Store, server: BadServer) -> None:
        await get()(store, server)
        store.close()
        with pytest.raises(StorageUnavailableError, match="closed"):
            await get()(store, server)

    run(honest(DATA), work)
