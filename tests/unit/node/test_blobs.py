import asyncio

import pytest

from shoal.node.blobs import BlobCache, describe, describe_bytes, upload
from shoal.node.errors import ResourceError
from shoal.node.store_keys import StoreKeys
from shoal.protocol.manifest import BlobSection
from shoal.storage.errors import RefusedError, StorageUnavailableError
from shoal.storage.meter import Meter, MeteredStore
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore

KEYS = StoreKeys(bytes(32))
RAW = b"genesis" * 100
BLOB = describe_bytes(RAW)


@pytest.fixture
def store():
    return FaultyStore()


@pytest.fixture
def cache(store, tmp_path, no_fsync):
    metered = MeteredStore(store, Meter(FakeClock().now_s))
    asyncio.run(upload(metered, KEYS, RAW))
    return BlobCache(tmp_path / "blobs", metered, KEYS)


def fetch(cache, blob=BLOB):
    return asyncio.run(cache.fetch(blob))


def num_gets(store):
    return sum(1 for verb, _ in store.calls if verb == "get")


def test_a_blob_is_fetched_once_and_verified(cache, store):
    assert fetch(cache).read_bytes() == RAW
    assert fetch(cache) == cache.path(BLOB)
    assert num_gets(store) == 1
    assert describe(cache.path(BLOB)) == BLOB


@pytest.mark.parametrize("damaged", [b"", RAW[:-1], RAW + b"\0", b"x" + RAW[1:]])
def test_a_damaged_copy_is_fetched_again(cache, store, damaged):
    fetch(cache).write_bytes(damaged)
    assert fetch(cache).read_bytes() == RAW
    assert num_gets(store) == 2


def test_uploading_the_same_blob_again_is_fine(cache, store):
    asyncio.run(upload(MeteredStore(store, Meter(FakeClock().now_s)), KEYS, RAW))
    assert fetch(cache).read_bytes() == RAW


@pytest.mark.parametrize("wrong", [b"x" + RAW[1:], RAW[:-1], b""])
def test_something_else_under_the_name_is_refused_and_not_kept(cache, store, wrong):
    store.fault = lambda verb, key, asked: wrong if verb == "get" else None
    with pytest.raises(ResourceError, match="E_BODY_HASH"):
        fetch(cache)
    assert not cache.path(BLOB).exists()


def test_more_bytes_than_the_manifest_names_are_never_read(cache, store):
    asyncio.run(store.inner.put(KEYS.blob(BLOB.sha256), RAW + b"\0", overwrite=True))
    with pytest.raises(ResourceError, match="cannot fetch"):
        fetch(cache)
    assert store.most_bytes == {KEYS.blob(BLOB.sha256): len(RAW)}


def test_another_length_than_the_manifests_is_refused(cache):
    longer = BlobSection(sha256=BLOB.sha256, num_bytes=len(RAW) + 1)
    with pytest.raises(ResourceError, match="E_BODY_HASH"):
        fetch(cache, longer)


def test_a_store_that_does_not_answer_is_told(cache, store):
    store.fault = lambda verb, key, asked: StorageUnavailableError("503", key)
    # Not the end: whoever starts a node tries again.
    with pytest.raises(StorageUnavailableError, match="503"):
        fetch(cache)
    assert store.num_injected > 0


def test_a_disk_that_is_full_is_told(cache, monkeypatch):
    def full(path, raw):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shoal.node.blobs.write_atomically", full)
    with pytest.raises(ResourceError, match="No space left on device"):
        fetch(cache)


def test_a_store_of_another_run_is_said(cache, store):
    store.fault = lambda verb, key, asked: RefusedError("not of this run", key, "E_RUN")
    with pytest.raises(ResourceError, match=r"^E_RUN cannot fetch .*use the manifest.json of the"):
        fetch(cache)
    store.fault = lambda verb, key, asked: RefusedError("a redirect", key, "E_HTTP_REDIRECT")
    with pytest.raises(ResourceError, match=r"^E_HTTP_REDIRECT cannot fetch .*a redirect$"):
        fetch(cache)
