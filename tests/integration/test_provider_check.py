"""What the check of a provider says when something is missing."""

import asyncio

import pytest

from shoal.storage.bucket_probes import Purpose
from shoal.storage.provider_check import CheckLine, check_bucket
from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store
from tests.support.s3_bad_server import BadServer, Bucket, Exchange

WRITER = S3Credentials(access_key="AKIAWRITER", secret_key="canary")  # noqa: S106 - made up
READER = S3Credentials(access_key="AKIAREADER", secret_key="canary")  # noqa: S106 - made up
READ_ONLY = frozenset({"GET", "HEAD"})
FAST = S3Limits(deadline_s=2.0, first_wait_s=0.01, num_attempts=2)


def check(
    bucket: Bucket,
    *,
    reader: S3Credentials | None = None,
    lists_in_order: bool = True,
    joins_once: bool = True,
    purpose: Purpose = "run",
    folder: str = "",
) -> list[CheckLine]:
    async def scenario() -> list[CheckLine]:
        async with BadServer(bucket) as server:
            config = S3Config(
                endpoint_url=server.url,
                bucket="bucket",
                prefix="mine",
                lists_in_order=lists_in_order,
                joins_once=joins_once,
                allow_loopback=True,
            )
            return await check_bucket(
                config,
                WRITER,
                reader=reader,
                purpose=purpose,
                folder=folder,
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
    assert len(lines) == 12
    assert (bucket.objects, bucket.uploads) == ({}, {})


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        ("once", {"BUCKET_CREATE_ONCE": "failure"}),
        ("match", {"BUCKET_IF_MATCH": "warning"}),
        ("range", {"BUCKET_RANGE": "failure"}),
        ("md5", {"BUCKET_CHECKSUM": "warning"}),
        ("join-once", {"BUCKET_MULTIPART": "failure"}),
        ("abort", {"BUCKET_MULTIPART": "warning"}),
        ("pages", {"BUCKET_LIST": "failure"}),
        ("order", {"BUCKET_LIST": "failure"}),
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


def test_a_runs_bucket_that_nobody_else_can_read_is_a_warning():
    expected = {"BUCKET_PUBLIC_READ": "warning", "BUCKET_PUBLIC_LIST": "warning"}
    assert unwell(check(Bucket(strangers=frozenset()))) == expected


def test_payloads_that_nobody_else_can_read_are_a_failure():
    bucket = Bucket(strangers=frozenset())
    assert unwell(check(bucket, purpose="payloads")) == {"BUCKET_PUBLIC_READ": "failure"}


@pytest.mark.parametrize("purpose", ["run", "payloads"])
def test_what_the_configuration_says_wrongly_is_named(purpose):
    bucket = Bucket(lacks=frozenset({"order", "join-once"}), strangers=READ_ONLY)
    lines = check(bucket, purpose=purpose)
    fixes = {line.code: line.fix for line in lines if line.level == "failure"}
    section = {"run": "[store]", "payloads": "[payloads]"}[purpose]
    expected = {"BUCKET_MULTIPART": f"set joins_once = false in {section} of node.toml"}
    if purpose == "run":
        expected["BUCKET_LIST"] = f"set lists_in_order = false in {section} of node.toml"
    assert fixes == expected
    told = check(bucket, purpose=purpose, lists_in_order=False, joins_once=False)
    assert unwell(told) == {}


def test_a_server_that_does_not_know_conditional_writes_is_named():
    async def unknown(exchange: Exchange) -> bool:
        if exchange.seen.header("if-none-match") is None:
            return False
        await exchange.answer(501)
        return True

    (line,) = check(Bucket(before=unknown, strangers=READ_ONLY), purpose="payloads")
    assert (line.code, line.level) == ("BUCKET_WRITE", "failure")
    assert "If-None-Match: *" in line.cause


def test_payloads_are_probed_below_their_folder_and_nothing_else_is_asked():
    """A key that may put, get and delete there, anonymous reading there, no listing: all ok."""
    folder, num_refused = "run/peers/me/payloads", 0

    async def confined(exchange: Exchange) -> bool:
        nonlocal num_refused
        seen = exchange.seen
        inside = seen.path.startswith(f"/bucket/mine/{folder}/shoal-check-")
        missing = seen.method in READ_ONLY and seen.path not in bucket.objects
        if inside and not missing:
            return False
        num_refused += 1
        # S3 says so, too, of an object that is not there, to who may not list.
        await exchange.answer(403)
        return True

    bucket = Bucket(before=confined, strangers=READ_ONLY)
    lines = check(bucket, purpose="payloads", folder=folder)
    assert unwell(lines) == {}
    codes = {line.code for line in lines}
    assert codes.isdisjoint({"BUCKET_LIST", "BUCKET_IF_MATCH", "BUCKET_CREATE_ONCE"})
    # Two objects that were expected not to be there; nothing was asked outside the folder.
    assert num_refused == 2
    assert bucket.objects == {}


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
