"""What the check of a provider says about a real server."""

import asyncio
from dataclasses import replace

import pytest

from shoal.storage.provider_check import check_bucket
from tests.support import s3_server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("bucket", "has_reader"), [(s3_server.PUBLIC, False), (s3_server.PRIVATE, True)]
)
def test_seaweedfs_has_all_that_a_run_needs(request, bucket, has_reader):
    server = s3_server.seaweed(request.config)
    keys = server.keys[bucket]
    prefix = s3_server.fresh_prefix()
    reader = keys.reader if has_reader else None
    lines = asyncio.run(
        check_bucket(server.config(bucket, prefix=prefix), keys.writer, reader=reader)
    )
    assert {line.code: line.level for line in lines if line.level != "ok"} == {}
    assert len(lines) == 12
    store = s3_server.seaweed_store(request.config, bucket, prefix=prefix)
    assert asyncio.run(store.listed("")) == []
    store.close()


def test_an_option_that_the_server_does_not_keep_is_named(request):
    server = s3_server.seaweed(request.config)
    prefix, writer = s3_server.fresh_prefix(), server.keys[s3_server.PUBLIC].writer
    # That several join at once is a matter of luck; in which order it lists is not.
    wrong = replace(server.config(s3_server.PUBLIC, prefix=prefix), lists_in_order=True)
    lines = asyncio.run(check_bucket(wrong, writer))
    (line,) = [line for line in lines if line.level != "ok"]
    assert (line.code, line.level) == ("BUCKET_LIST", "failure")
    assert "lists_in_order = false in [store]" in line.fix
