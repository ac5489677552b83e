"""The S3 store against answers that are odd in their frame, their fields or their lists."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate

import pytest

from shoal.storage.errors import ObjectSizeError, StorageUnavailableError
from shoal.storage.header_values import date_in
from shoal.storage.object_store import ListPage
from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store
from shoal.storage.s3_answers import refusal_of
from shoal.storage.s3_transport import Request
from tests.support.s3_bad_server import BadServer, Behaviour, Bucket, Exchange

LIMITS = S3Limits(
    deadline_s=2.0,
    connect_timeout_s=10.0,
    read_timeout_s=10.0,
    min_bytes_per_s=10_000.0,
    min_rate_window_s=0.5,
    first_wait_s=0.01,
    num_attempts=2,
    part_bytes=5 << 20,
)
PATIENT = S3Limits(deadline_s=60.0, first_wait_s=0.01, num_attempts=2, part_bytes=5 << 20)
KEY = S3Credentials(
    access_key="AKIAWRITER",
    secret_key="canary-secret",  # noqa: S106 - made up
    session_token="canary-token",  # noqa: S106 - made up
)
CHUNKED: dict[str, object] = {"Content-Length": None, "Transfer-Encoding": "chunked"}
XML = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


def run(
    behaviour: Behaviour, work: Callable[[S3Store], Awaitable[object]], limits=PATIENT, **config
) -> tuple[object, BadServer]:
    async def scenario() -> tuple[object, BadServer]:
        async with BadServer(behaviour) as server:
            place = S3Config(
                endpoint_url=server.url, bucket="bucket", allow_loopback=True, **config
            )
            store = S3Store(place, KEY, limits=limits)
            try:
                async with asyncio.timeout(60):
                    return await work(store), server
            finally:
                store.close()

    return asyncio.run(scenario())


def failing(work: Callable[[S3Store], Awaitable[object]], match: str):
    async def checked(store: S3Store) -> None:
        with pytest.raises(StorageUnavailableError, match=match):
            await work(store)

    return checked


def listed(store: S3Store) -> Awaitable[ListPage]:
    return store.list("rounds/")


def fixed(headers: dict[str, object], body: bytes = b"") -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, headers, body)

    return behaviour


def listing(*names: str, more: str = "false", extra: str = "") -> Behaviour:
    entries = "".join(f"<Contents><Key>{name}</Key></Contents>" for name in names)
    inner = f"<IsTruncated>{more}</IsTruncated>{extra}{entries}</ListBucketResult>"
    return fixed({"Content-Type": "application/xml"}, XML + inner.encode())


def trickling(beginning: bytes, piece: bytes, every_s: float) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, CHUNKED)
        await exchange.raw(beginning)
        while True:
            await exchange.raw(piece)
            await asyncio.sleep(every_s)

    return behaviour


@pytest.mark.parametrize(
    ("beginning", "piece", "every_s", "deadline_s", "words"),
    [
        (b"", b"0", 0.05, 30.0, "bytes per second expected"),
        (b"5;", b"x", 0.05, 30.0, "bytes per second expected"),
        (b"5\r\nhello\r\n0\r\n", b"A: b\r\n", 0.05, 2.0, "not done within 2 s"),
        (b"5\r\nhello\r\n0\r\n", b"A: b\r\n" * 100, 0.0, 30.0, "connection broke"),
        (b"", b"0" * 1000, 0.0, 30.0, "connection broke"),
    ],
)
def test_lines_between_the_chunks_of_a_body_that_never_end_do_end(
    beginning, piece, every_s, deadline_s, words
):
    behaviour = trickling(beginning, piece, every_s)
    # A flood has to end by its length, also where a busy machine lets little of it through.
    least = LIMITS.min_bytes_per_s if every_s else 1.0
    limits = replace(LIMITS, deadline_s=deadline_s, min_bytes_per_s=least)
    began_at_s = time.monotonic()
    run(behaviour, failing(listed, words), limits)
    run(behaviour, failing(lambda store: store.put("a", b"x"), words), limits)
    assert time.monotonic() - began_at_s < 30


def test_a_body_in_many_chunks_is_read():
    body = XML + b"<IsTruncated>false</IsTruncated>" + b"<!-- -->" * 3000
    body += b"<Contents><Key>rounds/1</Key></Contents></ListBucketResult>"

    async def behaviour(exchange: Exchange) -> None:
        await exchange.answer(200, CHUNKED)
        for start in range(0, len(body), 4):
            piece = body[start : start + 4]
            await exchange.raw(b"%x;a=b\r\n%s\r\n" % (len(piece), piece))
        await exchange.raw(b"0\r\nA: b\r\n\r\n")

    async def twice(store: S3Store) -> list[ListPage]:
        return [await listed(store) for _ in range(2)]

    pages, server = run(behaviour, twice)
    assert pages == [ListPage(keys=("rounds/1",), next_after=None)] * 2
    assert server.num_connections == 1


@pytest.mark.parametrize("in_order", [True, False])
def test_a_listing_that_never_ends_ends_with_the_deadline_of_one_call(in_order):
    async def behaviour(exchange: Exchange) -> None:
        token = f"<NextContinuationToken>t{exchange.number}</NextContinuationToken>"
        await listing(f"rounds/Z{exchange.number:09}", more="true", extra=token)(exchange)

    began_at_s = time.monotonic()
    work = failing(listed, "not done within 2 s")
    _, server = run(behaviour, work, LIMITS, lists_in_order=in_order)
    assert time.monotonic() - began_at_s < 20
    assert len(server.seen) > 1


def test_keys_that_were_not_asked_for_are_left_out_of_a_page_and_none_is_there_twice():
    names = ("pre/rounds/1", "rounds/2", "pre/a", "pre/../x", "x", "pre/rounds/1", "pre/rounds/3")
    page, _ = run(listing(*names), listed, prefix="pre")
    assert page == ListPage(keys=("rounds/1", "rounds/3"), next_after=None)


@pytest.mark.parametrize(
    "behaviour",
    [
        fixed({}, XML + b"<IsTruncated>false</IsTruncated><Contents/></ListBucketResult>"),
        listing(more="false", extra="<KeyCount>many</KeyCount>"),
        listing(extra="<Contents><Key>a</Key><LastModified>9e999</LastModified></Contents>"),
        fixed({}, b"<html>please log in</html>"),
        fixed({}, b"<a>" * (1 << 20)),
        fixed({}, b""),
    ],
)
def test_what_is_no_listing_is_an_error_of_the_store(behaviour):
    run(behaviour, failing(listed, "expected|cannot be read"))


@pytest.mark.parametrize(
    "date",
    [
        "yesterday", "1e400", "-1e17", "9" * 30, "nan", "inf", "", "Tue, 1 Jan 2019 00:00:00 +9999",
        "Mon, 99 Jan 2019 00:00:00 GMT",
    ],
)  # fmt: skip
def test_a_time_that_is_none_is_an_error_of_the_store(date):
    behaviour = fixed({"Last-Modified": date, "Content-Length": 3})
    run(behaviour, failing(lambda store: store.head("a"), "a time expected|cannot be read"))


async def nameless(exchange: Exchange) -> None:
    """Takes parts without saying their ETags."""
    body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    await exchange.answer(200, {}, body if exchange.seen.method == "POST" else b"")


@pytest.mark.parametrize(
    ("behaviour", "name"),
    [
        (fixed({}), "UploadId"),
        (fixed({}, b"<html></html>"), "UploadId"),
        (nameless, "ETag"),
    ],
)
def test_an_upload_whose_answers_lack_what_it_needs_is_an_error_of_the_store(behaviour, name):
    data = bytes(PATIENT.part_bytes + 1)
    work = failing(lambda store: store.put("a", data, overwrite=True), f"{name} expected")
    run(behaviour, work)


NOW_S = 1_800_000_000.0
LATER, DATE = formatdate(NOW_S + 90, usegmt=True), formatdate(NOW_S, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0"}, 0.0),
        # By the server's own clock, which may go wrong by hours; by ours if it shows none.
        ({"Retry-After": LATER, "Date": DATE}, 90.0),
        ({"Retry-After": LATER, "Date": "garbage"}, 90.0 - 50.0),
        ({"Retry-After": LATER}, 90.0 - 50.0),
        ({"Retry-After": DATE, "Date": LATER}, 0.0),
        ({"Retry-After": LATER.replace("GMT", "-0000"), "Date": DATE}, 90.0),
        ({"Retry-After": "-5"}, 0.0),
        ({"Retry-After": "1.5"}, 0.0),
        ({"Retry-After": "1e9"}, 0.0),
        ({"Retry-After": "٣"}, 0.0),
        ({"Retry-After": "9" * 30}, 0.0),
        ({"Retry-After": "x" * 10_000}, 0.0),
        ({"Retry-After": "Mon, 99 Jan 2019 00:00:00 GMT"}, 0.0),
        ({}, 0.0),
    ],
)
def test_how_long_a_server_asks_to_wait(headers, expected_s):
    assert refusal_of(503, headers, b"", NOW_S + 50.0).retry_after_s == expected_s


@pytest.mark.parametrize("text", [None, "", "now", "1, 2", "Mon", "Mon, 30 Nov", ":::", "0" * 39])
def test_what_is_no_date_is_none(text):
    assert date_in(text) is None


def test_a_busy_server_is_asked_again_at_the_time_that_it_says():
    async def behaviour(exchange: Exchange) -> None:
        if exchange.number == 0:
            dates: dict[str, object] = {
                "Retry-After": formatdate(NOW_S + 1),
                "Date": formatdate(NOW_S),
            }
            await exchange.answer(503, dates)
        else:
            await exchange.answer(200, {}, b"xyz")

    began_at_s = time.monotonic()
    data, server = run(behaviour, lambda store: store.get("a", max_bytes=3))
    assert data == b"xyz"
    assert len(server.seen) == 2
    assert time.monotonic() - began_at_s >= 1.0


def test_a_secret_or_a_token_is_in_no_line_of_a_log(caplog):
    caplog.set_level(logging.DEBUG)
    bucket = Bucket()

    async def work(store: S3Store) -> None:
        await store.put("a", b"x")
        await store.list("")

    _, server = run(bucket, work)
    assert server.seen[0].header("x-amz-security-token") == "canary-token"
    assert caplog.records
    request = Request(method="PUT", url="", headers={"x": "canary"}, body=b"canary")
    assert "canary" not in repr((KEY, request))
    assert "canary" not in caplog.text
    assert "Signature=" not in caplog.text


@pytest.mark.parametrize("interim", ["100 Continue", "102 Processing", "103 Early Hints", "199 X"])
def test_interim_answers_of_any_number_are_passed_over(interim):
    async def behaviour(exchange: Exchange) -> None:
        for _ in range(3):
            await exchange.raw(f"HTTP/1.1 {interim}\r\nLink: </a>\r\n\r\n".encode())
        await exchange.answer(200, {}, b"xyz" if exchange.seen.method == "GET" else b"")

    async def both(store: S3Store) -> bytes:
        await store.put("a", b"x")
        return await store.get("a", max_bytes=3)

    data, server = run(behaviour, both)
    assert data == b"xyz"
    assert len(server.seen) == 2


@pytest.mark.parametrize("status", [101, 103, 150])
def test_an_interim_answer_alone_is_no_success(status):
    async def behaviour(exchange: Exchange) -> None:
        await exchange.raw(f"HTTP/1.1 {status} Whatever\r\n\r\n".encode())
        exchange.close()

    run(behaviour, failing(lambda store: store.put("a", b"x"), "connection broke"))


def test_interim_answers_without_end_are_given_up():
    async def behaviour(exchange: Exchange) -> None:
        while True:
            await exchange.raw(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")

    run(behaviour, failing(lambda store: store.put("a", b"x"), "connection broke"))


def test_an_answer_about_a_condition_while_reading_on_means_that_the_object_was_replaced():
    async def behaviour(exchange: Exchange) -> None:
        if exchange.seen.range is not None:
            await exchange.answer(304)
            return
        await exchange.answer(200, {"Content-Length": 6, "ETag": '"e"'}, b"abc")
        exchange.close()

    async def read(store: S3Store) -> str:
        with pytest.raises(ObjectSizeError, match="replaced 3 times") as caught:
            await store.get("a", max_bytes=6)
        return str(caught.value)

    run(behaviour, read)
