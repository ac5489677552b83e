"""What the check of a provider says about a real server."""

import asyncio

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
