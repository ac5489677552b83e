"""One store for reading and another for writing.

Guarantees: what each of the two guarantees, and nothing about how soon a write of the one is seen
in the other: that is for whoever joins them (a validator's inbox that writes into the bucket which
everybody reads). Does not do: copy anything.
"""

from shoal.storage.filling import Arrived, read_into
from shoal.storage.object_store import DEFAULT_PAGE_KEYS, ListPage, ObjectInfo, ObjectStore


class SplitStore:
    """Reads here, writes there.

    Args:
        reads: For get, head and list.
        writes: For put and delete.
    """

    def __init__(self, reads: ObjectStore, writes: ObjectStore) -> None:
        self._reads = reads
        self._writes = writes

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """As the writing store's.

        Args:
            key: Where to put it.
            data: The whole object.
            overwrite: Replace what is there.

        Raises:
            StorageError: As the writing store's.
        """
        await self._writes.put(key, data, overwrite=overwrite)

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """As the reading store's.

        Args:
            key: Which object.
            max_bytes: The most that the caller can take.
            start: First byte of the range.
            length: Length of the range; None: up to the end.

        Returns:
            Exactly the bytes asked for.

        Raises:
            StorageError: As the reading store's.
        """
        return await self._reads.get(key, max_bytes=max_bytes, start=start, length=length)

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        """As the reading store's; see `filling`.

        Args:
            key: Which object.
            room: Where to put it.
            arrived: Told of the progress.

        Raises:
            StorageError: As the reading store's.
        """
        await read_into(self._reads, key, room, arrived)

    async def head(self, key: str) -> ObjectInfo:
        """As the reading store's.

        Args:
            key: Which object.

        Returns:
            Its length and time.

        Raises:
            StorageError: As the reading store's.
        """
        return await self._reads.head(key)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """As the reading store's.

        Args:
            prefix: What the keys begin with.
            after: Only keys that sort after this one.
            limit: The most keys on the page.

        Returns:
            The page.

        Raises:
            StorageError: As the reading store's.
        """
        return await self._reads.list(prefix, after=after, limit=limit)

    async def delete(self, key: str) -> None:
        """As the writing store's.

        Args:
            key: Which object.

        Raises:
            StorageError: As the writing store's.
        """
        await self._writes.delete(key)
