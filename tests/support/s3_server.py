"""A real S3 server for tests: SeaweedFS, one per test process, or the one that variables name.

SHOAL_TEST_S3_ENDPOINT, _BUCKET, _KEY and _SECRET name another endpoint for the conformance suite.
"""

import asyncio
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store
from shoal.storage.seaweed import BucketKeys, SeaweedServer

PUBLIC = "public-bucket"
PRIVATE = "private-bucket"
LIMITS = S3Limits(deadline_s=60.0, first_wait_s=0.05)
OTHER_VARIABLE = "SHOAL_TEST_S3_ENDPOINT"


_running: list[SeaweedServer] = []


def seaweed(config: pytest.Config) -> SeaweedServer:
    """Start the server of this process at its first use; it ends with the test run."""
    if not _running:
        runner = asyncio.Runner()
        folder = tempfile.TemporaryDirectory(prefix="shoal-s3-")
        buckets = {PUBLIC: BucketKeys.random(), PRIVATE: BucketKeys.random()}
        running = SeaweedServer.start(Path(folder.name), buckets, public=[PUBLIC])
        _running.append(runner.run(running.__aenter__()))

        def stop() -> None:
            runner.run(running.__aexit__(None, None, None))
            runner.close()
            folder.cleanup()

        config.add_cleanup(stop)
    return _running[0]


def seaweed_store(
    config: pytest.Config, bucket: str = PRIVATE, *, prefix: str | None = None
) -> S3Store:
    """A writer's store in a folder of its own."""
    server = seaweed(config)
    place = server.config(bucket, prefix=fresh_prefix() if prefix is None else prefix)
    return S3Store(place, server.keys[bucket].writer, limits=LIMITS)


def other_store(environment: Mapping[str, str] = os.environ) -> S3Store:
    """A store at the endpoint that variables name, in a folder of its own."""
    config = S3Config(
        endpoint_url=environment[OTHER_VARIABLE],
        bucket=environment["SHOAL_TEST_S3_BUCKET"],
        prefix=fresh_prefix(),
        region=environment.get("SHOAL_TEST_S3_REGION", "us-east-1"),
        allow_private=True,
    )
    credentials = S3Credentials(
        access_key=environment["SHOAL_TEST_S3_KEY"],
        secret_key=environment["SHOAL_TEST_S3_SECRET"],
    )
    return S3Store(config, credentials, limits=LIMITS)


async def remove_all(store: S3Store) -> None:
    """Delete all objects of a store's folder."""
    for key in await store.listed(""):
        await store.delete(key)


def fresh_prefix() -> str:
    """A folder that no other test uses."""
    return f"t{secrets.token_hex(8)}"
