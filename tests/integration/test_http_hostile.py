"""The client of a validator's HTTP service against servers that do what no honest one does."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping

import pytest

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    ObjectSizeError,
    ObjectTooLargeError,
    ObjectTooShortError,
    RefusedError,
    StorageError,
    StorageUnavailableError,
)
from shoal.storage.http import HttpLimits, HttpStore
from tests.support.s3_bad_server import BadServer, Behaviour, Exchange

LIMITS = HttpLimits(connect_s=2.0, total_s=3.0, rate_window_s=0.4)
ROOM = 2000
OK = "HTTP/1.1 200 OK\r\n"


def raw(head: str, body: bytes = b"") -> Behaviour:
    """Answers with exactly these bytes and keeps the connection open."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.raw(head.encode("latin-1") + b"\r\n" + body)

    return behaviour


def says(status: int, headers: Mapping[str, object] | None = None, body: bytes = b"x") -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(status, dict(headers or {}), body)

    return behaviour


async def endless_interim(exchange: Exchange) -> None:
    while True:
        await exchange.raw(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        await asyncio.sleep(0.01)


async def trickled_head(exchange: Exchange) -> None:
    await exchange.raw(OK.encode())
    for i in range(1000):
        await exchange.raw(f"X-{i}: x\r\n".encode())
        await asyncio.sleep(0.05)


async def trickled_body(exchange: Exchange) -> None:
    await exchange.raw(f"{OK}Content-Length: {ROOM}\r\n\r\n".encode())
    for _ in range(ROOM):
        await exchange.raw(b"x")
        await asyncio.sleep(0.02)


async def trickled_refusal(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        await exchange.raw(b"x")
        await asyncio.sleep(0.05)


async def cut(exchange: Exchange) -> None:
    await exchange.raw(f"{OK}Content-Length: {ROOM}\r\n\r\n".encode() + bytes(500))
    exchange.reset()


async def ended_early(exchange: Exchange) -> None:
    await exchange.raw(f"{OK}Content-Length: {ROOM}\r\n\r\n".encode() + bytes(500))
    exchange.close()


async def silent(_: Exchange) -> None:
    await asyncio.sleep(60)


async def closed(exchange: Exchange) -> None:
    exchange.close()


def body_of(num_bytes: int) -> str:
    return f"{OK}Content-Length: {num_bytes}\r\n"


TO_ITSELF = {"Location": "http://127.0.0.1:1/"}
CHUNKS = b"5\r\nxxxxx\r\n0\r\n\r\n"
Case = tuple[Behaviour, type[StorageError]]
CASES: dict[str, Case] = {
    "a redirect": (says(302, TO_ITSELF), RefusedError),
    "a lasting redirect": (says(308, TO_ITSELF), RefusedError),
    "not modified": (raw("HTTP/1.1 304 No\r\n"), RefusedError),
    "gzip": (says(200, {"Content-Encoding": "gzip"}), RefusedError),
    "two encodings": (says(200, {"Content-Encoding": "identity, br"}), RefusedError),
    "a redirect that is encoded": (says(302, {"Content-Encoding": "br"}), RefusedError),
    "chunks and no length": (raw(f"{OK}Transfer-Encoding: chunked\r\n", CHUNKS), ObjectSizeError),
    "chunks and a length": (
        raw(f"{body_of(5)}Transfer-Encoding: chunked\r\n", CHUNKS),
        StorageError,
    ),
    "two lengths": (raw(f"{body_of(5)}Content-Length: 6\r\n", b"xxxxx"), StorageError),
    "a length that is none": (raw(f"{OK}Content-Length: five\r\n", b"xxxxx"), StorageError),
    "a negative length": (raw(f"{OK}Content-Length: -5\r\n", b"xxxxx"), StorageError),
    "a length of 5000 digits": (raw(f"{OK}Content-Length: {'9' * 5000}\r\n"), StorageError),
    "a length of 19 digits": (raw(f"{OK}Content-Length: {'9' * 19}\r\n"), StorageError),
    "no length, until it closes": (raw(OK, b"x" * 100), StorageError),
    "50 GB": (raw(body_of(50 * 10**9), b"x" * 100), ObjectTooLargeError),
    "longer by a byte": (raw(body_of(ROOM + 1), bytes(ROOM + 1)), ObjectTooLargeError),
    "shorter by a byte": (raw(body_of(ROOM - 1), bytes(ROOM - 1)), ObjectTooShortError),
    "empty": (raw(body_of(0)), ObjectTooShortError),
    "a part that nobody asked for": (says(206, {}, bytes(ROOM)), StorageUnavailableError),
    "cut": (cut, StorageUnavailableError),
    "ended early": (ended_early, StorageUnavailableError),
    "a trickled body": (trickled_body, StorageUnavailableError),
    "a trickled head": (trickled_head, StorageUnavailableError),
    "a trickled refusal": (trickled_refusal, StorageUnavailableError),
    "endless interim answers": (endless_interim, StorageUnavailableError),
    "silence": (silent, StorageUnavailableError),
    "it hangs up": (closed, StorageUnavailableError),
    "no HTTP": (raw("SSH-2.0-OpenSSH_9.6\r\n"), StorageUnavailableError),
    "a head without end": (raw(OK + "X: " + "x" * 100_000 + "\r\n"), StorageUnavailableError),
    "a web page": (
        says(200, {"Content-Type": "text/html; charset=utf-8"}, bytes(ROOM)),
        StorageUnavailableError,
    ),
    "busy": (says(429, {"Retry-After": "0"}), StorageUnavailableError),
    "busy for ever": (says(429, {"Retry-After": "9" * 400}), StorageUnavailableError),
    "busy until no date": (says(503, {"Retry-After": "soon"}), StorageUnavailableError),
    "busy until yesterday": (
        says(503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        StorageUnavailableError,
    ),
    "a cookie": (says(404, {"Set-Cookie": "a=canary; Path=/"}), ObjectNotFoundError),
    "forbidden": (says(403), AccessDeniedError),
    "unauthorised": (says(401, {"WWW-Authenticate": "Basic"}), AccessDeniedError),
    "a proxy wants a name": (says(407, {"Proxy-Authenticate": "Basic"}), StorageError),
    "a status that is none": (says(999), StorageError),
}


def ask(behaviour: Behaviour, work: Callable[[HttpStore], Awaitable[object]]) -> BadServer:
    async def scenario() -> BadServer:
        async with BadServer(behaviour) as server, HttpStore(server.url, LIMITS) as store:
            await work(store)
            return server

    return asyncio.run(scenario())


def no_secret_was_sent(server: BadServer) -> None:
    assert server.seen
    for seen in server.seen:
        names = {name.lower() for name, _ in seen.headers}
        assert not names & {"authorization", "cookie", "proxy-authorization"}
        assert seen.header("accept-encoding") == "identity"


@pytest.fixture(autouse=True)
def proxies_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://user:canary@127.0.0.1:1")


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_server_answers_ends_soon_with_one_error_of_a_store(case: str) -> None:
    behaviour, expected = CASES[case]
    arrived: list[int] = []

    async def work(store: HttpStore) -> None:
        for _ in range(2):
            started_at_s = time.monotonic()
            with pytest.raises(expected):
                await store.get_into("a/b", memoryview(bytearray(ROOM)), arrived.append)
            # The longest limit is 3 s; the rest is a busy machine's.
            assert time.monotonic() - started_at_s < 15

    server = ask(behaviour, work)
    # A request whose answer did not begin may be sent once more on another connection.
    assert 2 <= len(server.seen) <= 4
    assert max(arrived, default=0) < ROOM
    no_secret_was_sent(server)


def test_bytes_after_the_announced_length_are_not_the_next_answer() -> None:
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"

    async def behaviour(exchange: Exchange) -> None:
        first = exchange.seen.path.endswith("/a/1")
        body = b"good" + evil if first else b"fine"
        await exchange.answer(200, {"Content-Length": 4}, body)

    async def work(store: HttpStore) -> None:
        assert await store.get("a/1", max_bytes=10) == b"good"
        for _ in range(3):
            try:
                assert await store.get("a/2", max_bytes=10) == b"fine"
            except StorageUnavailableError:
                continue
            return
        pytest.fail("never answered")

    ask(behaviour, work)


@pytest.mark.parametrize(
    ("body", "next_after"),
    [
        (b"r/b\nr/a\n", None),
        (b"r/a\nr/a\n", None),
        (b"elsewhere/a\n", None),
        (b"r/0\n", None),
        (b"r/a\nr/b\nr/c\nr/d\n", None),
        (b"../etc/passwd\n", None),
        (b"r/a\xff\n", None),
        (b"<html><body>hello</body></html>", None),
        (b"r/a\n", "r/0"),
        (b"r/a\n", "r/z"),
        (b"r/a\n", ""),
        (b"", "r/9"),
        (b"", "\x7f"),
    ],
)
def test_a_page_that_is_not_the_one_asked_for_is_no_page(
    body: bytes, next_after: str | None
) -> None:
    headers: dict[str, object] = {} if next_after is None else {"X-Next-After": next_after}

    async def work(store: HttpStore) -> None:
        with pytest.raises(StorageUnavailableError):
            await store.list("r/", after="r/0", limit=3)

    ask(says(200, headers, body), work)


def test_pages_that_are_right_are_followed() -> None:
    async def behaviour(exchange: Exchange) -> None:
        after = exchange.seen.query.get("after", [""])[0]
        pages = {"": (b"r/1\nr/2\n", {"X-Next-After": "r/2"}), "r/2": (b"r/3\n", {})}
        body, headers = pages[after]
        await exchange.answer(200, dict(headers), body)

    async def work(store: HttpStore) -> None:
        first = await store.list("r/", limit=2)
        second = await store.list("r/", after=first.next_after, limit=2)
        assert first.keys + second.keys == ("r/1", "r/2", "r/3")
        assert second.next_after is None

    ask(behaviour, work)


@pytest.mark.parametrize(
    "date",
    [
        "",
        "yesterday",
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999999",
        "Mon, 01 Jan 99999 00:00:00 GMT",
        "9" * 400,
    ],
)
def test_a_clock_that_makes_no_sense_is_no_clock(date: str) -> None:
    headers: dict[str, object] = {"Date": date, "Last-Modified": date, "X-Modified-At": "nan"}

    async def work(store: HttpStore) -> None:
        with pytest.raises(StorageUnavailableError):
            await store.server_time_s()
        assert (await store.head("a/b")).modified_at_s == 0.0

    ask(says(200, headers, b""), work)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "-1", "1e300", "x" * 300])
def test_a_time_of_writing_is_a_time(text: str) -> None:
    async def work(store: HttpStore) -> None:
        assert (await store.head("a/b")).modified_at_s == 0.0

    ask(says(200, {"X-Modified-At": text}, b""), work)


@pytest.mark.parametrize("status", [403, 422, 503])
def test_a_servers_words_do_nothing_to_a_terminal(status: int) -> None:
    async def work(store: HttpStore) -> None:
        with pytest.raises(StorageError) as caught:
            await store.get("a/b", max_bytes=10)
        assert str(caught.value).isprintable()

    ask(says(status, {}, b"E_X: \x1b[2J\x07\r\nroot logged in\n\x00" + b"y" * 5000), work)


def test_a_dead_family_of_addresses_costs_less_than_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name with two addresses: at the first one nobody answers, not even with a refusal."""
    asked = socket.getaddrinfo

    async def scenario() -> tuple[int, int]:
        async with BadServer(says(200, {}, b"hello")) as server:
            with socket.socket(socket.AF_INET6) as dead:
                dead.bind(("::1", server.port))
                dead.listen(0)
                # A queue that is full: what comes now waits for an answer for ever.
                waiting = [_knock(server.port) for _ in range(8)]
                addresses = [
                    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", server.port, 0, 0)),
                    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port)),
                ]

                def resolve(host: str, *args: object, **options: object) -> object:
                    if host == "two.example":
                        return addresses
                    return asked(host, *args, **options)  # type: ignore[arg-type]

                monkeypatch.setattr(socket, "getaddrinfo", resolve)
                limits = HttpLimits(connect_s=30.0, total_s=60.0)
                async with HttpStore(f"http://two.example:{server.port}", limits) as store:
                    started_at_s = time.monotonic()
                    assert await store.get("a/b", max_bytes=10) == b"hello"
                    took_s = time.monotonic() - started_at_s
                for one in waiting:
                    one.close()
                assert took_s < 10
                return server.num_connections, len(waiting)

    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    assert asyncio.run(scenario()) == (1, 8)


def _knock(port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET6)
    one.setblocking(False)
    one.connect_ex(("::1", port))
    return one


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_quiet_is_left_alone_by_every_call(status: int) -> None:
    async def behaviour(exchange: Exchange) -> None:
        is_first = len(exchange.server.seen) == 1
        await exchange.answer(status if is_first else 200, {"Retry-After": "2"})

    async def work(store: HttpStore) -> None:
        with pytest.raises(StorageUnavailableError):
            await store.get("a/1", max_bytes=10)
        asked_at_s = time.monotonic()
        num_held_back = 0
        async with asyncio.timeout(60):
            while True:
                try:
                    assert await store.get(f"a/{num_held_back}", max_bytes=10) == b""
                except StorageUnavailableError:
                    num_held_back += 1
                    await asyncio.sleep(0.1)
                else:
                    break
        assert num_held_back
        assert time.monotonic() - asked_at_s > 1.8

    assert len(ask(behaviour, work).seen) == 2


def test_a_server_that_asks_for_days_of_quiet_gets_the_length_of_one_call() -> None:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(503, {"Retry-After": "999999999"})

    async def work(store: HttpStore) -> None:
        with pytest.raises(StorageUnavailableError):
            await store.head("a/1")
        await asyncio.sleep(LIMITS.total_s + 0.2)
        with pytest.raises(StorageUnavailableError, match="503"):
            await store.get("a/1", max_bytes=10)

    assert len(ask(behaviour, work).seen) == 2
