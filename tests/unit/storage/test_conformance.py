"""What every store must do; a new store joins by adding its factory to FACTORIES."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import (
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectSizeError,
    ObjectTooLargeError,
    ObjectTooShortError,
)
from shoal.storage.filling import read_into
from shoal.storage.memory import MemoryStore
from shoal.storage.meter import Meter, MeteredStore
from shoal.storage.object_store import ObjectStore
from shoal.storage.s3 import S3Store
from tests.support import s3_server

NOW_S = 1_700_000_000.0

FACTORIES: dict[str, Callable[[pytest.Config, Path], ObjectStore]] = {
    "memory": lambda _, __: MemoryStore(now_s=lambda: NOW_S),
    "directory": lambda _, folder: DirectoryStore(folder),
    "metered": lambda _, __: MeteredStore(
        MemoryStore(now_s=lambda: NOW_S), Meter(lambda: 0.0)
    ).labelled(peer="p", kind="k"),
    "seaweedfs": lambda config, _: s3_server.seaweed_store(config),
}
if s3_server.OTHER_VARIABLE in os.environ:
    FACTORIES["s3"] = lambda _, __: s3_server.other_store()

# A real server's processes and round trips take their time.
SLOW = {"seaweedfs", "s3"}

BAD_KEYS = {
    "empty": "",
    "parent": "../secret",
    "deep parent": "../../root/.ssh/authorized_keys",
    "parent inside": "a/../b",
    "parent at the end": "a/..",
    "dot": "a/./b",
    "hidden": ".tmp/x",
    "hidden inside": "a/.b",
    "absolute": "/etc/passwd",
    "double slash": "a//b",
    "slash at the end": "a/",
    "slash alone": "/",
    "nul": "a\0b",
    "newline at the end": "a\n",
    "percent": "%2e%2e/a",
    "backslash": "a\\b",
    "upper case": "Record",
    "full-width unicode": "\uff41",
    "dotless i": "\u0131",
    "arabic digit": "\u0663",
    "lone surrogate": "\ud800",
    "space": "a b",
    "the folder layout's own mark": "a+",
    "too long": "a/" * 256 + "a",
    "segment too long": "a" * 129,
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FACTORIES
    ]
)
def store(request, tmp_path: Path) -> Iterator[ObjectStore]:
    made = FACTORIES[request.param](request.config, tmp_path)
    yield made
    if isinstance(made, S3Store):
        if request.param == "s3":
            # Somebody's own bucket is left as it was.
            asyncio.run(s3_server.remove_all(made))
        made.close()


def put(store: ObjectStore, key: str, data: bytes | memoryview = b"x", *, overwrite=False) -> None:
    asyncio.run(store.put(key, data, overwrite=overwrite))


def get(store: ObjectStore, key: str, **limits) -> bytes:
    return asyncio.run(store.get(key, **{"max_bytes": 1_000_000, **limits}))


def keys(store: ObjectStore, prefix: str = "", **page) -> tuple[str, ...]:
    return asyncio.run(store.list(prefix, **page)).keys


@pytest.mark.parametrize("data", [b"", b"\0", b"hello", bytes(range(256)) * 1000])
def test_what_was_written_is_read(store, data):
    put(store, "rounds/7/record", data)
    assert get(store, "rounds/7/record") == data


@pytest.mark.parametrize("num_bytes", [1, 1000, 300_000])
def test_an_object_is_read_into_room_of_its_length(store, num_bytes):
    data = bytes(range(256)) * (num_bytes // 256 + 1)
    put(store, "a", data[:num_bytes])
    room = memoryview(bytearray(num_bytes))
    told: list[int] = []
    asyncio.run(read_into(store, "a", room, told.append))
    assert bytes(room) == data[:num_bytes]
    assert told[-1] == num_bytes
    assert told == sorted(told)


def test_room_of_another_length_gets_nothing(store):
    put(store, "a", b"12345")
    for num_bytes, error in ((4, ObjectTooLargeError), (6, ObjectTooShortError)):
        room = memoryview(bytearray(num_bytes))
        told: list[int] = []
        with pytest.raises(error) as caught:
            asyncio.run(read_into(store, "a", room, told.append))
        assert caught.value.key == "a"
        assert set(told) <= {0}
        assert bytes(room) == bytes(num_bytes)
    with pytest.raises(ObjectNotFoundError):
        asyncio.run(read_into(store, "b", memoryview(bytearray(1)), told.append))


def test_a_memoryview_of_wide_items_is_written_as_its_bytes(store):
    put(store, "a", memoryview(b"abcdefgh").cast("Q"))
    assert get(store, "a") == b"abcdefgh"


def test_a_key_is_created_once(store):
    put(store, "a", b"first")
    with pytest.raises(ObjectExistsError) as caught:
        put(store, "a", b"second")
    assert caught.value.key == "a"
    assert get(store, "a") == b"first"


def test_of_racing_creators_one_wins(store):
    async def race():
        puts = [store.put("a", b"%d" % number) for number in range(16)]
        return await asyncio.gather(*puts, return_exceptions=True)

    outcomes = asyncio.run(race())
    losers = [outcome for outcome in outcomes if outcome is not None]
    assert len(losers) == 15
    assert all(isinstance(loser, ObjectExistsError) for loser in losers)
    assert get(store, "a") == b"%d" % outcomes.index(None)


def test_overwriting_replaces_and_also_creates(store):
    put(store, "a", b"a long first version", overwrite=True)
    put(store, "a", b"second", overwrite=True)
    assert get(store, "a") == b"second"
    assert asyncio.run(store.head("a")).num_bytes == 6


def test_head_knows_length_and_time(store):
    put(store, "a/b", b"12345")
    info = asyncio.run(store.head("a/b"))
    assert (info.key, info.num_bytes) == ("a/b", 5)
    assert info.modified_at_s > 1_600_000_000


@pytest.mark.parametrize("key", ["a", "a/b", "b/c/d"])
def test_a_missing_object_is_not_found(store, key):
    put(store, "b", b"x")
    with pytest.raises(ObjectNotFoundError):
        asyncio.run(store.head("a"))
    with pytest.raises(ObjectNotFoundError):
        get(store, key)


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (0, 10, b"0123456789"),
        (2, 3, b"234"),
        (9, 1, b"9"),
        (4, 0, b""),
        (10, 0, b""),
        (10, None, b""),
    ],
)
def test_a_range_is_exact(store, start, length, expected):
    put(store, "a", b"0123456789")
    assert get(store, "a", max_bytes=len(expected), start=start, length=length) == expected


@pytest.mark.parametrize(("start", "length"), [(11, None), (11, 0), (10, 1), (0, 11), (5, 2**62)])
def test_a_range_that_leaves_the_object_is_refused(store, start, length):
    put(store, "a", b"0123456789")
    with pytest.raises(ObjectSizeError):
        get(store, "a", max_bytes=2**63, start=start, length=length)


@pytest.mark.parametrize(("start", "length", "max_bytes"), [(0, None, 9), (0, 5, 4), (9, None, 0)])
def test_more_bytes_than_allowed_are_refused(store, start, length, max_bytes):
    put(store, "a", b"0123456789")
    with pytest.raises(ObjectTooLargeError):
        get(store, "a", max_bytes=max_bytes, start=start, length=length)


@pytest.mark.parametrize("numbers", [{"max_bytes": -1}, {"start": -1}, {"length": -1}])
def test_negative_numbers_are_the_callers_mistake(store, numbers):
    put(store, "a")
    with pytest.raises(ValueError, match="negative"):
        get(store, "a", **numbers)


def test_more_than_a_thousand_keys_are_paged(store, monkeypatch):
    # Durability is not what is tested here, and a thousand syncs take seconds.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    expected = tuple(sorted(f"rounds/{number % 7}/{number}" for number in range(1_030)))

    async def put_all():
        for key in expected:
            await store.put(key, b"")

    asyncio.run(put_all())
    first = asyncio.run(store.list(""))
    assert (first.keys, first.next_after) == (expected[:1000], expected[999])
    second = asyncio.run(store.list("", after=first.next_after))
    assert (second.keys, second.next_after) == (expected[1000:], None)
    found: list[str] = []
    after = None
    while True:
        page = asyncio.run(store.list("rounds/", after=after, limit=103))
        assert len(page.keys) <= 103
        found.extend(page.keys)
        after = page.next_after
        if after is None:
            break
    assert tuple(found) == expected


def test_a_page_that_ends_exactly_with_the_keys_is_the_last(store):
    put(store, "a")
    put(store, "b")
    page = asyncio.run(store.list("", limit=2))
    assert (page.keys, page.next_after) == (("a", "b"), None)
    with pytest.raises(ValueError, match="at least 1"):
        keys(store, limit=0)


ALL = ("a", "a-b", "a.b", "a.b/c", "a/b", "a/b.c", "a/b/c", "a0", "ab", "b/a")


@pytest.mark.parametrize(
    "prefix", ["", "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/c/", "a.", "b", "c", "a0"]
)
@pytest.mark.parametrize("after", [None, "a", "a.b", "a/b", "a/b/c", "a/", "a1", "c"])
def test_keys_are_listed_in_order_by_prefix(store, prefix, after, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for key in reversed(ALL):
        put(store, key, overwrite=True)
    expected = tuple(k for k in ALL if k.startswith(prefix) and k > (after or ""))
    assert keys(store, prefix, after=after) == expected


def test_a_key_may_be_the_folder_of_another(store):
    put(store, "a", b"outer")
    put(store, "a/b", b"inner")
    put(store, "a/b/c", b"innermost")
    assert [get(store, key) for key in ("a", "a/b", "a/b/c")] == [b"outer", b"inner", b"innermost"]
    asyncio.run(store.delete("a"))
    assert keys(store) == ("a/b", "a/b/c")


def test_a_folder_of_others_may_become_a_key(store, request):
    if request.node.callspec.params["store"] == "seaweedfs":
        reason = "it takes the folder for an object and refuses to create the key"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    put(store, "a/b", b"inner")
    put(store, "a", b"outer")
    assert [get(store, key) for key in ("a", "a/b")] == [b"outer", b"inner"]


def test_deleting_is_idempotent_and_frees_the_key(store):
    put(store, "a/b", b"1")
    for _ in range(2):
        asyncio.run(store.delete("a/b"))
    asyncio.run(store.delete("never/was"))
    assert keys(store) == ()
    with pytest.raises(ObjectNotFoundError):
        get(store, "a/b")
    put(store, "a/b", b"2")
    assert get(store, "a/b") == b"2"


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS.keys())
def test_a_bad_key_is_refused_everywhere(store, key):
    calls = [
        lambda: put(store, key),
        lambda: put(store, key, overwrite=True),
        lambda: get(store, key),
        lambda: asyncio.run(store.head(key)),
        lambda: asyncio.run(store.delete(key)),
    ]
    for call in calls:
        with pytest.raises(InvalidKeyError) as caught:
            call()
        assert caught.value.code == "E_OBJECT_KEY"
        assert str(caught.value).isascii()
    assert keys(store) == ()


@pytest.mark.parametrize("prefix", ["../", "/", "a//", ".t", "A", "a\0", "a/../b", "a" * 600])
def test_a_prefix_that_no_key_has_is_refused(store, prefix):
    with pytest.raises(InvalidKeyError):
        keys(store, prefix)
    with pytest.raises(InvalidKeyError):
        keys(store, after=prefix)


@pytest.mark.parametrize("key", ["a" * 128, "-", "_", "a..b", "a.", "/".join(["a" * 127] * 4)])
def test_unusual_but_valid_keys_work(store, key):
    put(store, key, b"x")
    assert get(store, key) == b"x"
    assert keys(store) == (key,)
