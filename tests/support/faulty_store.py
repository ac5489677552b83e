"""A store that fails as a test says, and counts every failure that it injected."""

import asyncio
from collections import Counter
from collections.abc import Callable

from shoal.storage.memory import MemoryStore
from shoal.storage.object_store import DEFAULT_PAGE_KEYS, ListPage, ObjectInfo

Fault = Callable[[str, str, int], Exception | bytes | float | None]
"""(verb, key, how often this was asked before) -> what happens instead.

An exception is raised, bytes are what a `get` returns, a number delays by so many seconds.
"""


class FaultyStore:
    """A store in memory behind a fault function; see `Fault`."""

    def __init__(self, inner: MemoryStore | None = None, fault: Fault | None = None) -> None:
        self.inner = MemoryStore() if inner is None else inner
        self.fault = fault or (lambda verb, key, asked: None)
        self.asked: Counter[tuple[str, str]] = Counter()
        self.injected: Counter[tuple[str, str]] = Counter()
        self.calls: list[tuple[str, str]] = []
        self.most_bytes: dict[str, int] = {}
        """The largest `max_bytes` that anybody asked for, by key."""

    @property
    def num_injected(self) -> int:
        return sum(self.injected.values())

    async def _meet(self, verb: str, key: str) -> bytes | None:
        asked = self.asked[verb, key]
        self.asked[verb, key] += 1
        self.calls.append((verb, key))
        found = self.fault(verb, key, asked)
        if found is None:
            return None
        self.injected[verb, key] += 1
        if isinstance(found, Exception):
            raise found
        if isinstance(found, float):
            await asyncio.sleep(found)
            return None
        return found

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        await self._meet("put", key)
        await self.inner.put(key, data, overwrite=overwrite)

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        self.most_bytes[key] = max(max_bytes, self.most_bytes.get(key, 0))
        instead = await self._meet("get", key)
        if instead is not None:
            return instead
        return await self.inner.get(key, max_bytes=max_bytes, start=start, length=length)

    async def head(self, key: str) -> ObjectInfo:
        await self._meet("head", key)
        return await self.inner.head(key)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        await self._meet("list", prefix)
        return await self.inner.list(prefix, after=after, limit=limit)

    async def delete(self, key: str) -> None:
        await self._meet("delete", key)
        await self.inner.delete(key)
