"""Two stores as one: whose word counts, what happens while one is away, what is copied across."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.storage.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StorageFullError,
    StorageUnavailableError,
)
from shoal.storage.merged import AWAY_S, SOON_S, MergedStore
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.virtual_time import run_virtual


def away(verb: str, key: str, _: int) -> Exception:
    return StorageUnavailableError(f"{verb} is away", key)


class Pair:
    """A merged store and what it is made of."""

    def __init__(self, *, truth: bool = False, shares: bool = False) -> None:
        self.first, self.second, self.clock = FaultyStore(), FaultyStore(), FakeClock()
        self.store = MergedStore(
            self.first,
            self.second,
            first_is_truth=truth,
            shares=lambda _: shares,
            now_s=self.clock.now_s,
        )

    def fill(self, first: dict[str, bytes], second: dict[str, bytes]) -> "Pair":
        async def put_all() -> None:
            for store, objects in ((self.first, first), (self.second, second)):
                for key, data in objects.items():
                    await store.inner.put(key, data)

        run(put_all())
        return self

    def get(self, key: str) -> bytes:
        data: bytes = run(self.store.get(key, max_bytes=100))
        return data


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def test_what_one_has_is_read_and_the_first_goes_before() -> None:
    pair = Pair().fill({"a": b"1", "b": b"first"}, {"b": b"second", "c": b"2"})
    assert [pair.get(key) for key in "abc"] == [b"1", b"first", b"2"]
    assert run(pair.store.head("c")).num_bytes == 1
    with pytest.raises(ObjectNotFoundError):
        pair.get("d")


def test_a_store_that_is_away_is_left_alone_for_a_while_and_tried_again() -> None:
    pair = Pair().fill({"a": b"1"}, {"a": b"1", "b": b"2"})
    pair.first.fault = away
    assert pair.get("a") == b"1"
    assert pair.first.num_injected == 1
    assert pair.get("b") == b"2"
    run(pair.store.put("c", b"3"))
    assert run(pair.store.list("")).keys == ("a", "b", "c")
    assert pair.first.num_injected == 1, "not asked again"
    # What the one that answers does not have is not there: rounds must not wait for the other.
    with pytest.raises(ObjectNotFoundError):
        pair.get("d")
    pair.clock.advance(AWAY_S)
    pair.first.fault = lambda verb, key, asked: None
    run(pair.store.put("d", b"4"))
    assert run(pair.first.inner.get("d", max_bytes=9)) == b"4"


@pytest.mark.parametrize("truth", [False, True])
def test_nobody_answers(*, truth: bool) -> None:
    pair = Pair(truth=truth)
    pair.first.fault = pair.second.fault = away
    for work in (
        pair.store.get("a", max_bytes=1),
        pair.store.head("a"),
        pair.store.list(""),
        pair.store.put("a", b""),
    ):
        with pytest.raises(StorageUnavailableError):
            run(work)


def test_one_that_takes_a_write_is_enough_unless_the_first_is_the_truth() -> None:
    for number in range(2):
        pair = Pair()
        (pair.first, pair.second)[number].fault = away
        run(pair.store.put("a", b"1"))
        assert pair.get("a") == b"1"
    pair = Pair(truth=True)
    pair.second.fault = away
    run(pair.store.put("a", b"1"))
    pair.first.fault = away
    with pytest.raises(StorageUnavailableError):
        run(pair.store.put("b", b"1"))
    assert run(pair.second.inner.list("")).keys == ()


@pytest.mark.parametrize("truth", [False, True])
def test_one_that_hangs_does_not_hold_a_write_for_long(
    monkeypatch: pytest.MonkeyPatch, *, truth: bool
) -> None:
    monkeypatch.setattr("shoal.storage.merged.GRACE_S", 0.01)
    for number in range(1 if truth else 0, 2):
        pair = Pair(truth=truth)
        hanging, other = (pair.second, pair.first) if number else (pair.first, pair.second)
        hanging.fault = lambda verb, key, asked: 3600.0
        run(pair.store.put("a", b"1"))
        assert run(other.inner.get("a", max_bytes=9)) == b"1"
        assert hanging.num_injected == 1


def test_the_truth_that_is_away_does_not_count_as_empty() -> None:
    pair = Pair(truth=True).fill({"a": b"1"}, {})
    pair.first.fault = away
    for work in (pair.store.get("a", max_bytes=1), pair.store.list("")):
        with pytest.raises(StorageUnavailableError):
            run(work)


@pytest.mark.parametrize("truth", [False, True])
def test_create_once_and_a_full_store_are_told(*, truth: bool) -> None:
    pair = Pair(truth=truth).fill({"a": b"1"}, {})
    with pytest.raises(ObjectExistsError):
        run(pair.store.put("a", b"2"))
    pair = Pair(truth=truth)
    full = StorageFullError("full", "a", "disk", 0)
    pair.first.fault = lambda verb, key, asked: full
    pair.second.fault = away
    with pytest.raises(StorageFullError):
        run(pair.store.put("a", b"1"))


def test_a_download_that_broke_off_is_not_continued_elsewhere() -> None:
    class Breaks(FaultyStore):
        async def get_into(self, key: str, room: memoryview, arrived: Any) -> None:
            arrived(1)
            raise StorageUnavailableError("broke off", key)

    pair = Pair().fill({}, {"a": b"12"})
    store = MergedStore(Breaks(), pair.second, first_is_truth=False, now_s=pair.clock.now_s)
    room = memoryview(bytearray(2))
    told: list[int] = []
    with pytest.raises(StorageUnavailableError):
        run(store.get_into("a", room, told.append))
    assert told == [1]
    # The next try does not begin with the one that is away.
    run(store.get_into("a", room, told.append))
    assert bytes(room) == b"12"


def test_what_only_one_shows_is_copied_to_the_other_once() -> None:
    pair = Pair(truth=True, shares=True).fill({"r/a": b"1"}, {"r/b": b"2"})

    async def look() -> None:
        for _ in range(3):
            await pair.store.list("r/")
            await asyncio.sleep(0)
            await asyncio.gather(*pair.store._tasks)

    run(look())
    assert run(pair.first.inner.get("r/b", max_bytes=9)) == b"2"
    assert run(pair.second.inner.get("r/a", max_bytes=9)) == b"1"
    assert pair.first.asked["put", "r/b"] == pair.second.asked["put", "r/a"] == 1


def test_delete_is_from_both() -> None:
    pair = Pair(truth=True).fill({"a": b"1"}, {"a": b"1"})
    run(pair.store.delete("a"))
    with pytest.raises(ObjectNotFoundError):
        pair.get("a")


@settings(deadline=None)
@given(
    st.sets(st.text("abc", min_size=1, max_size=3)),
    st.sets(st.text("abc", min_size=1, max_size=3)),
    st.integers(1, 5),
)
def test_pages_give_the_union_in_order(first: set[str], second: set[str], limit: int) -> None:
    pair = Pair().fill(dict.fromkeys(first, b""), dict.fromkeys(second, b""))

    async def read_all() -> list[str]:
        found: list[str] = []
        after = None
        while True:
            page = await pair.store.list("", after=after, limit=limit)
            assert len(page.keys) <= limit
            found += page.keys
            if page.next_after is None:
                return found
            after = page.next_after

    assert run(read_all()) == sorted(first | second)


@pytest.mark.parametrize("truth", [True, False])
def test_where_the_first_says_no_the_second_is_not_waited_for_long(truth: bool) -> None:
    pair = Pair(truth=truth).fill({"a": b"1"}, {"c": b"2"})
    pair.second.fault = lambda verb, key, _: 1e6 if key == "b" else None

    async def body(_: object) -> None:
        begin_s = asyncio.get_running_loop().time()
        with pytest.raises(ObjectNotFoundError):
            await pair.store.get("b", max_bytes=100)
        with pytest.raises(ObjectNotFoundError):
            await pair.store.head("b")
        assert asyncio.get_running_loop().time() - begin_s <= 2 * SOON_S + 0.1
        assert await pair.store.get("c", max_bytes=100) == b"2"

    run_virtual(body)
    assert pair.second.num_injected == 2
