"""From errors of the operating system to errors of a store.

Guarantees: every OSError gets a class and a sentence that names the folder and the reason. What is
not known to be permanent counts as unavailable, since callers bound their retries anyway.

Does not handle a missing object: only the operation knows whether an absent file means that.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shoal.storage.errors import (
    AccessDeniedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# What the kernel answers when a symbolic link or a file stands where O_NOFOLLOW wants a folder, and
# the other way round.
_FOREIGN: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})


@contextmanager
def translated(root: Path, key: str) -> Iterator[None]:
    """Turn any OSError inside into the store's error.

    Args:
        root: The store's folder.
        key: The key that was asked for; empty when the whole store is meant.

    Yields:
        Nothing.

    Raises:
        AccessDeniedError: Permissions, a read-only disk, or a foreign file in the way.
        StorageFullError: The disk or the quota is full.
        StorageUnavailableError: Anything else.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(error, root, key) from error


def storage_error(error: OSError, root: Path, key: str) -> StorageError:
    """Choose the store's error for an operating system's error.

    Args:
        error: What the system said.
        root: The store's folder.
        key: The key that was asked for; empty when the whole store is meant.

    Returns:
        The error to raise.
    """
    where = f"object {key!r} in the store {root}" if key else f"the store {root}"
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        num_free_bytes = _num_free_bytes(root)
        return StorageFullError(
            f"{where}: {reason}; {num_free_bytes} bytes free at {root}",
            key,
            str(root),
            num_free_bytes,
        )
    if error.errno in _DENIED:
        return AccessDeniedError(f"{where}: {reason}; this user needs access to it", key)
    if error.errno in _FOREIGN:
        return AccessDeniedError(
            f"{where}: something that the store did not make is in the way ({reason})", key
        )
    return StorageUnavailableError(f"{where}: {reason}", key)


def _num_free_bytes(root: Path) -> int:
    try:
        state = os.statvfs(root)
    except OSError:
        # The number only decorates a message: a disk that cannot say has nothing to offer.
        return 0
    return state.f_bavail * state.f_frsize
