"""A store in a folder: the embedded default, for one machine or for a shared disk.

Guarantees what `object_store` says, between threads, processes and machines that see the same
folder, also when writers are killed at any moment. Needs no server. The work runs in worker
threads.

Does not create its folder and does not remove folders that have become empty. Needs a POSIX system.
The layout is described in `folders`, the way of a write in `placing`.
"""

import asyncio
import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectSizeError,
)
from shoal.storage.folders import (
    is_plain_file,
    keys_below,
    open_object,
    open_root,
    split_key,
    walk_to,
)
from shoal.storage.keys import check_key, check_prefix
from shoal.storage.object_store import (
    DEFAULT_PAGE_KEYS,
    ListPage,
    ObjectInfo,
    check_limit,
    page_of,
    range_num_bytes,
)
from shoal.storage.os_errors import translated
from shoal.storage.placing import sweep, write_object
from shoal.storage.progress import note_moved


class DirectoryStore:
    """Objects as files below one folder.

    Args:
        root: The folder; must exist.
        now_s: Unix seconds; decides which temporary files are old enough to remove at the start.

    Raises:
        AccessDeniedError: The folder cannot be read, or is not a folder.
        StorageUnavailableError: The folder is not there.
    """

    def __init__(self, root: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._root = root
        with translated(root, ""), open_root(root) as root_fd:
            sweep(root_fd, now_s())

    async def put(self, key: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Write an object: atomic, durable when it returns, create-once unless `overwrite`.

        When the call is cancelled the worker thread still finishes: the object may appear.

        Args:
            key: Where to put it.
            data: The whole object; not to be changed until the write has ended.
            overwrite: Replace what is there.

        Raises:
            ObjectExistsError: The key is taken and `overwrite` is false.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: Permissions, a read-only disk, a foreign file in the way.
            StorageFullError: Disk or quota is full; what was there before is untouched.
            StorageUnavailableError: The disk failed or the folder is gone.
        """
        check_key(key)
        await asyncio.to_thread(self._put, key, data, overwrite)

    async def get(
        self, key: str, *, max_bytes: int, start: int = 0, length: int | None = None
    ) -> bytes:
        """Read an object or a range of it; never more than `max_bytes`.

        Args:
            key: Which object.
            max_bytes: The most that the caller can take; more is refused before it is read.
            start: First byte of the range.
            length: Length of the range; None: up to the end.

        Returns:
            Exactly the bytes asked for, all from one version of the object.

        Raises:
            ObjectNotFoundError: No object has this key.
            ObjectTooLargeError: More than `max_bytes` were asked for.
            ObjectSizeError: The range leaves the object, or its file has been cut.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: Permissions, or a foreign file in the key's place.
            StorageUnavailableError: The disk failed or the folder is gone.
            ValueError: A number is negative.
        """
        check_key(key)
        return await asyncio.to_thread(self._get, key, max_bytes, start, length)

    async def head(self, key: str) -> ObjectInfo:
        """Look at an object without reading it.

        Args:
            key: Which object.

        Returns:
            Its length and time.

        Raises:
            ObjectNotFoundError: No object has this key.
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: Permissions, or a foreign file in the key's place.
            StorageUnavailableError: The disk failed or the folder is gone.
        """
        check_key(key)
        return await asyncio.to_thread(self._head, key)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = DEFAULT_PAGE_KEYS
    ) -> ListPage:
        """List keys in lexicographic order, a page at a time; whole objects only.

        Args:
            prefix: What the keys begin with; need not end at a slash.
            after: Only keys that sort after this one.
            limit: The most keys on the page, at least 1.

        Returns:
            The page. Each page looks at the folders anew: objects written meanwhile may be on it.

        Raises:
            InvalidKeyError: No valid key begins with `prefix` or `after`.
            AccessDeniedError: A folder cannot be read.
            StorageUnavailableError: The disk failed or the folder is gone.
            ValueError: `limit` is below 1.
        """
        check_prefix(prefix)
        check_prefix(after or "")
        check_limit(limit)
        return await asyncio.to_thread(self._list, prefix, after or "", limit)

    async def delete(self, key: str) -> None:
        """Remove an object; idempotent, durable when it returns.

        Args:
            key: Which object.

        Raises:
            InvalidKeyError: The key breaks the rules in `keys`.
            AccessDeniedError: Permissions or a read-only disk.
            StorageUnavailableError: The disk failed or the folder is gone.
        """
        check_key(key)
        await asyncio.to_thread(self._delete, key)

    def _put(self, key: str, data: bytes | memoryview, overwrite: bool) -> None:
        folders, name = split_key(key)
        with translated(self._root, key), open_root(self._root) as root_fd:
            try:
                write_object(root_fd, folders, name, data, overwrite=overwrite)
            except FileExistsError as error:
                raise ObjectExistsError(
                    f"object {key!r} exists in {self._root}, a create-once write was asked", key
                ) from error
        note_moved(memoryview(data).nbytes)

    def _get(self, key: str, max_bytes: int, start: int, length: int | None) -> bytes:
        folders, name = split_key(key)
        with translated(self._root, key), open_root(self._root) as root_fd:
            try:
                with walk_to(root_fd, folders) as folder_fd:
                    file_fd = open_object(folder_fd, name)
            except FileNotFoundError as error:
                raise self._not_found(key) from error
            try:
                state = os.fstat(file_fd)
                self._check_plain(key, state)
                num_wanted = range_num_bytes(
                    key, state.st_size, max_bytes=max_bytes, start=start, length=length
                )
                return _read_range(key, file_fd, start, num_wanted)
            finally:
                os.close(file_fd)

    def _head(self, key: str) -> ObjectInfo:
        folders, name = split_key(key)
        with translated(self._root, key), open_root(self._root) as root_fd:
            try:
                with walk_to(root_fd, folders) as folder_fd:
                    state = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except FileNotFoundError as error:
                raise self._not_found(key) from error
        self._check_plain(key, state)
        return ObjectInfo(key=key, num_bytes=state.st_size, modified_at_s=state.st_mtime)

    def _list(self, prefix: str, after: str, limit: int) -> ListPage:
        with translated(self._root, ""), open_root(self._root) as root_fd:
            # One more than asked for tells whether another page exists.
            return page_of(list(islice(keys_below(root_fd, prefix, after), limit + 1)), limit)

    def _delete(self, key: str) -> None:
        folders, name = split_key(key)
        with translated(self._root, key), open_root(self._root) as root_fd:
            try:
                with walk_to(root_fd, folders) as folder_fd:
                    os.unlink(name, dir_fd=folder_fd)
                    os.fsync(folder_fd)
            except FileNotFoundError:
                # Deleting is idempotent: what is not there is deleted.
                return

    def _not_found(self, key: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(f"no object {key!r} in {self._root}", key)

    def _check_plain(self, key: str, state: os.stat_result) -> None:
        if not is_plain_file(state):
            raise AccessDeniedError(
                f"object {key!r} in {self._root}: a plain file expected, found a link, a folder "
                "or a device",
                key,
            )


def _read_range(key: str, file_fd: int, start: int, num_wanted: int) -> bytes:
    parts: list[bytes] = []
    num_missing = num_wanted
    while num_missing:
        # One read gives at most 2 GiB, so a large object takes several.
        part = os.pread(file_fd, num_missing, start + num_wanted - num_missing)
        if not part:
            raise ObjectSizeError(
                f"object {key!r}: {num_wanted} bytes expected, the file ended {num_missing} early",
                key,
            )
        parts.append(part)
        num_missing -= len(part)
        note_moved(len(part))
    return parts[0] if len(parts) == 1 else b"".join(parts)
