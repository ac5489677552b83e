"""A store in the memory of one process, for tests.

Guarantees what `object_store` says, durability excepted: it ends with the process. Safe in one
event loop; no call gives up control half-way.
"""

import time
from collections.abc import Callable

from shoal.storage.errors import ObjectExistsError, ObjectNotFoundError
from shoal.storage.keys import check_key, check_prefix
from shoal.storage.object_store import (
    DEFAULT_PAGE_KEYS,
    ListPage,
    ObjectInfo,
    check_limit,
    page_of,
    range_num_bytes,
)
from shoal.storage.progress import note_moved


class MemoryStore:
    """Objects in a dictionary.

    Args:
        now_s: The store's clock, unix seconds.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._objects: dict[str, tuple[bytes, float]] = {}

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Write an object, atomically.

        Args:
            key: Where to put it.
            data: The whole object.
            overwrite: Replace what is there.

        Raises:
            ObjectExistsError: The key is taken and `overwrite` is false.
            InvalidKeyError: The key breaks the rules in `keys`.
        """
        check_key(key)
        if key in self._objects and not overwrite:
            raise ObjectExistsError(f"object {key!r} exists, a create-once write was asked", key)
        kept = bytes(data)
        note_moved(len(kept))
        self._objects[key] = (kept, self._now_s())

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """Read an object or a range of it; never more than `max_bytes`.

        Args:
            key: Which object.
            max_bytes: The most that the caller can take.
            start: First byte of the range.
            length: Length of the range; None: up to the end.

        Returns:
            Exactly the bytes asked for.

        Raises:
            ObjectNotFoundError: No object has this key.
            ObjectTooLargeError: More than `max_bytes` were asked for.
            ObjectSizeError: The range leaves the object.
            InvalidKeyError: The key breaks the rules in `keys`.
            ValueError: A number is negative.
        """
        data, _ = self._find(key)
        num_wanted = range_num_bytes(
            key, len(data), max_bytes=max_bytes, start=start, length=length
        )
        note_moved(num_wanted)
        return data[start : start + num_wanted]

    async def head(self, key: str) -> ObjectInfo:
        """Look at an object without reading it.

        Args:
            key: Which object.

        Returns:
            Its length and time.

        Raises:
            ObjectNotFoundError: No object has this key.
            InvalidKeyError: The key breaks the rules in `keys`.
        """
        data, modified_at_s = self._find(key)
        return ObjectInfo(key=key, num_bytes=len(data), modified_at_s=modified_at_s)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """List keys in lexicographic order, a page at a time.

        Args:
            prefix: What the keys begin with.
            after: Only keys that sort after this one.
            limit: The most keys on the page, at least 1.

        Returns:
            The page.

        Raises:
            InvalidKeyError: No valid key begins with `prefix` or `after`.
            ValueError: `limit` is below 1.
        """
        check_prefix(prefix)
        check_prefix(after or "")
        check_limit(limit)
        found = (key for key in self._objects if key.startswith(prefix) and key > (after or ""))
        return page_of(sorted(found), limit)

    async def delete(self, key: str) -> None:
        """Remove an object; idempotent.

        Args:
            key: Which object.

        Raises:
            InvalidKeyError: The key breaks the rules in `keys`.
        """
        check_key(key)
        self._objects.pop(key, None)

    def _find(self, key: str) -> tuple[bytes, float]:
        check_key(key)
        if key not in self._objects:
            raise ObjectNotFoundError(f"no object {key!r}", key)
        return self._objects[key]
