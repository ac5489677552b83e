"""Two stores that hold the same keys, as one.

Reads come from the first that has the object, and do not wait long for the second's word on a small
one; a store that does not answer is left alone for a while. A list is the union. Ways of writing:

* the first is the truth: it takes the write or nobody does, the second follows as well as it can
  (a validator's own store, and the network);
* neither is: one that takes the write is enough (a service that may be away, and the network).

With `shares`, keys that a list shows in one store only are copied to the other, in the background.

Guarantees: what the two guarantee where both answer. An object counts as missing if a store that
answers says so and the other has nothing either. Create-once is that of the stores: with no truth
and one store away, a second writer is seen only by the store that is there.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final, TypeVar

from shoal.storage.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from shoal.storage.filling import Arrived, read_into
from shoal.storage.object_store import (
    DEFAULT_PAGE_KEYS,
    ListPage,
    ObjectInfo,
    ObjectStore,
    union_of,
)

AWAY_S: Final = 5.0
"""How long a store that did not answer is not asked, if the other one answers."""
GRACE_S: Final = 5.0
"""How long a write waits for the other store once one has taken it."""
MAX_SHARED_BYTES: Final = 64 * 1024
SOON_S: Final = 1.0
_MAX_SMALL_BYTES: Final = 1 << 20
_MAX_REMEMBERED: Final = 65_536
_HANGS_S: Final = 5.0

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class MergedStore:
    """The union of two stores.

    Args:
        first: Asked first.
        second: Asked where the first has nothing or does not answer.
        first_is_truth: Whether a write counts only if the first takes it.
        shares: Which keys are copied to the store that lacks them.
        now_s: A monotonic clock.
    """

    def __init__(
        self,
        first: ObjectStore,
        second: ObjectStore,
        *,
        first_is_truth: bool,
        shares: Callable[[str], bool] = lambda _: False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = first
        self._second = second
        self._first_is_truth = first_is_truth
        self._shares = shares
        self._now_s = now_s
        self._away_until_s = float("-inf")
        self._shared: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Write to both, as the module says.

        Args:
            key: Where to put it.
            data: The whole object.
            overwrite: Replace what is there.

        Raises:
            ObjectExistsError: A store has another object, and `overwrite` is false.
            StorageError: The first store's, or where neither takes it.
        """
        if self._first_is_truth:
            await self._first.put(key, data, overwrite=overwrite)
            await self._follow(key, data)
            return
        stores = (self._second,) if self._is_away() else (self._first, self._second)
        done = await _first_and_a_little(
            [store.put(key, data, overwrite=overwrite) for store in stores], key
        )
        _raise_others(done)
        errors = [one for one in done if isinstance(one, StorageError)]
        for error in errors:
            if isinstance(error, ObjectExistsError):
                raise error
        if done and isinstance(done[0], StorageUnavailableError) and len(stores) > 1:
            self._note_away()
        if len(errors) == len(stores):
            raise next((e for e in errors if isinstance(e, StorageFullError)), errors[0])

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """Read from the first store that has it.

        Args:
            key: Which object.
            max_bytes: The most that the caller can take.
            start: First byte of the range.
            length: Length of the range; None: up to the end.

        Returns:
            Exactly the bytes asked for.

        Raises:
            ObjectNotFoundError: Neither has it.
            StorageError: As the store that was asked.
        """
        return await self._read(
            lambda store: store.get(key, max_bytes=max_bytes, start=start, length=length),
            is_small=max_bytes <= _MAX_SMALL_BYTES,
        )

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        """Read a whole object into room of exactly its length; see `filling`.

        Once bytes have come from one store the other is not asked: the first may still be writing.

        Args:
            key: Which object.
            room: Where to put it.
            arrived: Told of the progress.

        Raises:
            StorageError: As `get`.
        """
        num_arrived = 0

        def note(num_bytes: int) -> None:
            nonlocal num_arrived
            num_arrived = max(num_arrived, num_bytes)
            arrived(num_bytes)

        async def read(store: ObjectStore) -> None:
            if num_arrived:
                raise StorageUnavailableError(f"{key!r} broke off after {num_arrived} bytes", key)
            await read_into(store, key, room, note)

        await self._read(read)

    async def head(self, key: str) -> ObjectInfo:
        """Look at an object in the first store that has it.

        Args:
            key: Which object.

        Returns:
            Its length and time.

        Raises:
            ObjectNotFoundError: Neither has it.
            StorageError: As the store that was asked.
        """
        return await self._read(lambda store: store.head(key), is_small=True)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """List the union, in lexicographic order.

        Args:
            prefix: What the keys begin with.
            after: Only keys that sort after this one.
            limit: The most keys on the page, at least 1.

        Returns:
            The page.

        Raises:
            StorageError: The first store's where it is the truth, or where neither answers.
        """
        stores = (self._second,) if self._is_away() else (self._first, self._second)
        lists = (store.list(prefix, after=after, limit=limit) for store in stores)
        done = await asyncio.gather(*lists, return_exceptions=True)
        _raise_others(done)
        failed = [one for one in done if isinstance(one, StorageError)]
        if failed and isinstance(done[0], StorageError) and len(stores) > 1:
            if self._first_is_truth:
                raise done[0]
            self._note_away()
        pages = [one for one in done if isinstance(one, ListPage)]
        if not pages:
            raise failed[0]
        if len(pages) == len((self._first, self._second)):
            self._share(*pages)
        return union_of(pages, limit)

    async def delete(self, key: str) -> None:
        """Remove an object from both; idempotent.

        Args:
            key: Which object.

        Raises:
            StorageError: The first store's.
        """
        await self._first.delete(key)
        try:
            await self._second.delete(key)
        except StorageError as error:
            _log.warning("%s is not removed everywhere: %s", key, error)

    def close(self) -> None:
        """End what runs in the background; the stores are their owner's to close."""
        for task in self._tasks:
            task.cancel()

    def _is_away(self) -> bool:
        return not self._first_is_truth and self._now_s() < self._away_until_s

    def _note_away(self) -> None:
        self._away_until_s = self._now_s() + AWAY_S

    async def _read(
        self, read: Callable[[ObjectStore], Awaitable[ResultT]], *, is_small: bool = False
    ) -> ResultT:
        if self._is_away():
            return await read(self._second)
        try:
            return await self._read_first(read)
        except (ObjectNotFoundError, StorageUnavailableError) as error:
            has_answered = is_small and isinstance(error, ObjectNotFoundError)
            try:
                async with asyncio.timeout(SOON_S if has_answered else None):
                    return await read(self._second)
            except ObjectNotFoundError:
                if self._first_is_truth:
                    raise error from None
                raise
            except (StorageError, TimeoutError) as second_error:
                _log.debug("neither store: %s", second_error)
                raise error from None

    async def _read_first(self, read: Callable[[ObjectStore], Awaitable[ResultT]]) -> ResultT:
        started_at_s = self._now_s()
        try:
            return await read(self._first)
        except StorageUnavailableError:
            self._note_away()
            raise
        except asyncio.CancelledError:
            # The caller's own time limit ended it: the next one need not wait as long.
            if self._now_s() - started_at_s > _HANGS_S:
                self._note_away()
            raise

    async def _follow(self, key: str, data: bytes | memoryview) -> None:
        try:
            async with asyncio.timeout(GRACE_S):
                await self._second.put(key, data, overwrite=True)
        except (StorageError, TimeoutError) as error:
            _log.debug("%s is only in the first store: %s", key, error)

    def _share(self, first: ListPage, second: ListPage) -> None:
        """Copy what only one of the two has shown, each key once."""
        for keys, source, target in (
            (set(first.keys).difference(second.keys), self._first, self._second),
            (set(second.keys).difference(first.keys), self._second, self._first),
        ):
            for key in keys:
                if self._shares(key) and key not in self._shared:
                    if len(self._shared) >= _MAX_REMEMBERED:
                        self._shared.clear()
                    self._shared.add(key)
                    task = asyncio.create_task(self._copy(key, source, target))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _copy(self, key: str, source: ObjectStore, target: ObjectStore) -> None:
        try:
            await target.put(key, await source.get(key, max_bytes=MAX_SHARED_BYTES))
        except ObjectExistsError:
            return
        except StorageError as error:
            self._shared.discard(key)
            _log.debug("%s is not shared yet: %s", key, error)


async def _first_and_a_little(
    works: Sequence[Coroutine[None, None, None]], key: str
) -> list[BaseException | None]:
    """What came of each; once one has succeeded the others have `GRACE_S` left."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        succeeded = any(task.done() and task.exception() is None for task in tasks)
        await asyncio.wait(tasks, timeout=GRACE_S if succeeded else None)
    finally:
        for task in tasks:
            task.cancel()
    late = StorageUnavailableError(f"{key!r} is not taken yet", key)
    return [task.exception() if task.done() else late for task in tasks]


def _raise_others(done: Sequence[ResultT | BaseException]) -> None:
    for one in done:
        if isinstance(one, BaseException) and not isinstance(one, StorageError):
            raise one
