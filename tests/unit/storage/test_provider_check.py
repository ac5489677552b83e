"""What the check of a provider says when something is missing."""

import asyncio

import pytest

from shoal.storage.provider_check import CheckLine, check_bucket
from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store
from tests.support.s3_bad_server import BadServer, Bucket, Exchange

WRITER = S3Credentials(access_key="AKIAWRITER", secret_key="canary")  # noqa: S106 - made up
READER = S3Credentials(access_key="AKIAREADER", secret_key="canary")  # noqa: S106 - made up
READ_ONLY = frozenset({"GET", "HEAD"})
FAST = S3Limits(deadline_s=2.0, first_wait_s=0.01, num_attempts=2)


def check(
    bucket: Bucket, *, reader: S3Credentials | None = None, lists_in_order: bool = True
) -> list[CheckLine]:
    async def scenario() -> list[CheckLine]:
        async with BadServer(bucket) as server:
            config = S3Config(
                endpoint_url=server.url,
                bucket="bucket",
                prefix="mine",
                lists_in_order=lists_in_order,
                allow_loopback=True,
            )
            return await check_bucket(
                config,
                WRITER,
                reader=reader,
                opened_by=lambda place, key: S3Store(place, key, limits=FAST),
            )

    return asyncio.run(scenario())


def unwell(lines: list[CheckLine]) -> dict[str, str]:
    for line in lines:
        assert bool(line.cause) == bool(line.fix) == (line.level != "ok")
        assert "canary" not in repr(line)
    return {line.code: line.level for line in lines if line.level != "ok"}


def test_a_good_bucket_is_well_and_left_as_it_was():
    bucket = Bucket(strangers=READ_ONLY)
    lines = check(bucket)
    assert unwell(lines) == {}
    assert len(lines) == 11
    assert (bucket.objects, bucket.uploads) == ({}, {})


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        ("once", {"BUCKET_CREATE_ONCE": "failure"}),
        ("match", {"BUCKET_IF_MATCH": "warning"}),
        ("range", {"BUCKET_RANGE": "failure"}),
        ("md5", {"BUCKET_CHECKSUM": "warning"}),
        ("join-once", {"BUCKET_MULTIPART": "warning"}),
        ("abort", {"BUCKET_MULTIPART": "warning"}),
        ("pages", {"BUCKET_LIST": "failure"}),
        ("order", {"BUCKET_LIST": "warning"}),
        ("delete", {"BUCKET_DELETE": "warning"}),
    ],
)
def test_what_is_missing_is_found(feature, expected):
    bucket = Bucket(lacks=frozenset({feature}), strangers=READ_ONLY)
    assert unwell(check(bucket)) == expected


def test_a_bucket_that_is_said_to_list_by_folders_may_do_so():
    bucket = Bucket(lacks=frozenset({"order"}), strangers=READ_ONLY)
    assert unwell(check(bucket, lists_in_order=False)) == {}


def test_a_bucket_that_anybody_can_write_to_is_a_failure():
    assert unwell(check(Bucket())) == {"BUCKET_PUBLIC_WRITE": "failure"}


def test_a_read_only_key_that_can_write_is_a_failure():
    bucket = Bucket(strangers=frozenset())
    assert unwell(check(bucket, reader=READER)) == {"BUCKET_PUBLIC_WRITE": "failure"}


def test_a_bucket_that_nobody_else_can_read_is_a_warning():
    assert unwell(check(Bucket(strangers=frozenset()))) == {"BUCKET_PUBLIC_READ": "warning"}


def test_a_private_bucket_with_a_read_only_key_is_well():
    async def only_reads(exchange: Exchange) -> bool:
        is_reader = "AKIAREADER" in str(exchange.seen.header("authorization"))
        if is_reader and exchange.seen.method not in READ_ONLY:
            await exchange.answer(403)
            return True
        return False

    bucket = Bucket(before=only_reads, strangers=frozenset())
    assert unwell(check(bucket, reader=READER)) == {}


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_bucket_that_cannot_be_written_to_gives_one_line(status):
    async def refuse(exchange: Exchange) -> bool:
        await exchange.answer(status)
        return True

    lines = check(Bucket(before=refuse))
    assert unwell(lines) == {"BUCKET_WRITE": "failure"}
    assert len(lines) == 1
