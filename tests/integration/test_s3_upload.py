"""How the S3 store writes when answers are lost, writers race and servers fail."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable

import pytest

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    StorageFullError,
    StorageUnavailableError,
)
from shoal.storage.progress import Progress, keeping
from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store
from tests.support.s3_bad_server import (
    BadServer,
    Bucket,
    Exchange,
    Stored,
    error_body,
    noise,
    until,
)

PART_BYTES = 5 << 20
SMALL = b"a small object"
LARGE = noise(9, 2 * PART_BYTES + 1000)
FAST = S3Limits(
    deadline_s=10.0, read_timeout_s=1.0, first_wait_s=0.01, num_attempts=4, part_bytes=PART_BYTES
)
KEY = S3Credentials(
    access_key="AKIAOWNER",
    secret_key="canary-secret",  # noqa: S106 - made up
    session_token="canary-token",  # noqa: S106 - made up
)
PATH = "/bucket/runs/one/a"


def run(bucket: Bucket, work: Callable[[S3Store], Awaitable[object]]) -> BadServer:
    async def scenario() -> BadServer:
        async with BadServer(bucket) as server:
            config = S3Config(
                endpoint_url=server.url, bucket="bucket", prefix="runs/one", allow_loopback=True
            )
            store = S3Store(config, KEY, limits=FAST)
            try:
                await work(store)
            finally:
                store.close()
            return server

    return asyncio.run(scenario())


def put(data: bytes, *, overwrite: bool = False) -> Callable[[S3Store], Awaitable[None]]:
    return lambda store: store.put("a", data, overwrite=overwrite)


def failing(expected: type[Exception], data: bytes, *, overwrite: bool = False):
    async def work(store: S3Store) -> None:
        with pytest.raises(expected) as caught:
            await put(data, overwrite=overwrite)(store)
        shown = "".join(traceback.format_exception(caught.value))
        assert "canary" not in shown

    return work


def times(num_times: int, act: Callable[[Exchange], Awaitable[None]], *, only: str = ""):
    """A fault that happens to the first requests whose method and target contain a text."""
    left = [num_times]

    async def fault(exchange: Exchange) -> bool:
        if only not in f"{exchange.seen.method} {exchange.seen.target}" or not left[0]:
            return False
        left[0] -= 1
        await act(exchange)
        return True

    return fault


async def lose(exchange: Exchange) -> None:
    exchange.reset()


def refuse(status: int, code: str = "") -> Callable[[Exchange], Awaitable[None]]:
    async def act(exchange: Exchange) -> None:
        await exchange.answer(status, {}, error_body(code) if code else b"")

    return act


@pytest.mark.parametrize("data", [b"", SMALL, LARGE])
def test_an_object_arrives_whole_and_its_bytes_are_counted(data):
    bucket = Bucket()
    progress = Progress(lambda: 0.0)

    async def work(store: S3Store) -> None:
        with keeping(progress):
            await store.put("a", data)

    server = run(bucket, work)
    assert bucket.objects[PATH].data == data
    assert progress.num_bytes == len(data)
    assert all(seen.header("authorization") for seen in server.seen)
    assert all(seen.header("expect") is None for seen in server.seen)
    assert all(seen.header("content-md5") for seen in server.seen if seen.method == "PUT")


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_a_key_that_is_taken_stays_as_it_is(data):
    bucket = Bucket(objects={PATH: Stored(b"first", {})})
    server = run(bucket, failing(ObjectExistsError, data))
    assert bucket.objects[PATH].data == b"first"
    assert sum(len(seen.body) for seen in server.seen) < 10_000
    run(bucket, put(data, overwrite=True))
    assert bucket.objects[PATH].data == data


@pytest.mark.parametrize("keeps_metadata", [True, False])
@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_a_write_whose_answer_was_lost_is_known_to_be_ours(data, keeps_metadata):
    only = "PUT /bucket/runs/one/a" if data == SMALL else "POST /bucket/runs/one/a?uploadId"
    bucket = Bucket(after=times(1, lose, only=only), keeps_metadata=keeps_metadata)
    run(bucket, put(data))
    assert bucket.objects[PATH].data == data


def test_a_lost_join_that_cannot_be_told_from_another_write_may_have_happened():
    bucket = Bucket()

    async def lose_and_replace(exchange: Exchange) -> bool:
        if (
            "POST /bucket/runs/one/a?uploadId"
            not in f"{exchange.seen.method} {exchange.seen.target}"
        ):
            return False
        bucket.objects[PATH] = Stored(SMALL, {"x-amz-meta-shoal-write": "0" * 32})
        exchange.reset()
        return True

    bucket.after = lose_and_replace
    run(bucket, failing(StorageUnavailableError, LARGE, overwrite=True))


def test_an_older_servers_word_for_a_key_that_is_taken_is_understood():
    bucket = Bucket(before=times(1, refuse(304)))
    run(bucket, failing(ObjectExistsError, SMALL))


@pytest.mark.parametrize("keeps_metadata", [True, False])
def test_another_writers_object_is_not_taken_for_ours_after_a_lost_answer(keeps_metadata):
    bucket = Bucket(keeps_metadata=keeps_metadata)

    async def somebody_else_wins(exchange: Exchange) -> None:
        bucket.objects[PATH] = Stored(SMALL[::-1], {"x-amz-meta-shoal-write": "0" * 32})
        exchange.reset()

    bucket.before = times(1, somebody_else_wins)
    run(bucket, failing(ObjectExistsError, SMALL))
    assert bucket.objects[PATH].data == SMALL[::-1]


def test_the_same_bytes_by_another_writer_are_not_our_success():
    bucket = Bucket()

    async def somebody_else_wins(exchange: Exchange) -> None:
        bucket.objects[PATH] = Stored(SMALL, {"x-amz-meta-shoal-write": "0" * 32})
        exchange.reset()

    bucket.before = times(1, somebody_else_wins)
    run(bucket, failing(ObjectExistsError, SMALL))


@pytest.mark.parametrize("status", [500, 503])
def test_a_failed_write_is_repeated(status):
    for data, overwrite in ((SMALL, False), (SMALL, True), (LARGE, False)):
        bucket = Bucket(before=times(2, refuse(status)))
        run(bucket, put(data, overwrite=overwrite))
        assert bucket.objects[PATH].data == data


def test_a_write_that_failed_by_the_answer_only_is_known_to_be_ours():
    bucket = Bucket(after=times(1, refuse(500)))
    run(bucket, put(SMALL))
    assert bucket.objects[PATH].data == SMALL


def test_a_conflict_with_a_write_under_way_is_repeated_until_it_is_decided():
    conflict = refuse(409, "ConditionalRequestConflict")
    bucket = Bucket(before=times(1, conflict, only="PUT"))
    run(bucket, put(SMALL))
    assert bucket.objects[PATH].data == SMALL
    bucket = Bucket(before=times(1, conflict, only="PUT"), objects={PATH: Stored(b"first", {})})
    run(bucket, failing(ObjectExistsError, SMALL))


def test_damage_on_the_way_is_repaired_by_sending_again():
    bucket = Bucket(before=times(1, refuse(400, "BadDigest")))
    run(bucket, put(SMALL))
    assert bucket.objects[PATH].data == SMALL


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "AccessDenied", AccessDeniedError),
        (403, "SignatureDoesNotMatch", AccessDeniedError),
        (403, "RequestTimeTooSkewed", AccessDeniedError),
        (404, "NoSuchBucket", AccessDeniedError),
        (404, "", AccessDeniedError),
        (501, "NotImplemented", AccessDeniedError),
        (507, "", StorageFullError),
        (403, "QuotaExceeded", StorageFullError),
    ],
)
def test_what_will_not_pass_is_not_repeated(status, code, expected):
    for data in (SMALL, LARGE):
        bucket = Bucket(before=times(10**6, refuse(status, code), only=""))
        server = run(bucket, failing(expected, data, overwrite=True))
        assert len(server.seen) == 1
        assert bucket.objects == {}


def test_finished_parts_are_not_sent_again():
    bucket = Bucket(
        before=times(2, lose, only="partNumber=2"), after=times(1, lose, only="partNumber=3")
    )
    server = run(bucket, put(LARGE))
    assert bucket.objects[PATH].data == LARGE
    numbers = [seen.query["partNumber"][0] for seen in server.seen if "partNumber" in seen.query]
    assert {number: numbers.count(number) for number in numbers} == {"1": 1, "2": 3, "3": 2}
    assert bucket.aborted == []


def test_a_write_that_is_given_up_removes_its_parts():
    bucket = Bucket(before=times(10**6, lose, only="partNumber=2"))
    run(bucket, failing(StorageUnavailableError, LARGE))
    assert (bucket.objects, bucket.uploads) == ({}, {})
    assert len(bucket.aborted) == 1


def test_a_write_that_loses_the_race_at_its_end_removes_its_parts():
    bucket = Bucket()

    async def somebody_else_wins(exchange: Exchange) -> bool:
        if "uploadId" in exchange.seen.query:
            bucket.objects[PATH] = Stored(b"first", {})
        return False

    bucket.before = somebody_else_wins
    run(bucket, failing(ObjectExistsError, LARGE))
    assert bucket.objects[PATH].data == b"first"
    assert len(bucket.aborted) == 1


def test_a_join_that_fails_after_its_200_is_a_failure():
    async def late(exchange: Exchange) -> None:
        await exchange.answer(200, {}, error_body("InternalError"))

    bucket = Bucket(before=times(1, late, only="POST /bucket/runs/one/a?uploadId"))
    run(bucket, put(LARGE))
    assert bucket.objects[PATH].data == LARGE
    bucket = Bucket(before=times(10**6, late, only="POST /bucket/runs/one/a?uploadId"))
    run(bucket, failing(StorageUnavailableError, LARGE))
    assert len(bucket.aborted) == 1


def test_a_cancelled_write_removes_its_parts():
    bucket = Bucket()

    async def hang(exchange: Exchange) -> bool:
        if exchange.seen.query.get("partNumber") == ["3"]:
            await asyncio.sleep(0.5)
        return False

    bucket.before = hang

    async def work(store: S3Store) -> None:
        task = asyncio.create_task(store.put("a", LARGE))
        await until(lambda: any(1 in parts for parts in bucket.uploads.values()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: bucket.aborted)

    run(bucket, work)
    assert bucket.objects == {}


def test_a_redirect_gets_no_body():
    async def redirect(exchange: Exchange) -> None:
        await exchange.answer(307, {"Location": f"{exchange.server.url}/elsewhere"})

    async def work(store: S3Store) -> None:
        with pytest.raises(Exception, match="redirect") as caught:
            await store.put("a", SMALL)
        assert getattr(caught.value, "code", "") == "E_HTTP_REDIRECT"

    assert len(run(Bucket(before=times(1, redirect)), work).seen) == 1


def test_secrets_are_in_no_text():
    assert "canary" not in repr(KEY) + str(KEY)
    assert "AKIAOWNER" in repr(KEY)
    with pytest.raises(ValueError, match="secret_key") as caught:
        S3Credentials(access_key="a", secret_key="canary secret")  # noqa: S106 - made up
    assert "canary" not in str(caught.value)
