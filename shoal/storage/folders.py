"""How the directory store lays keys out, and how it reaches them without leaving its root.

The object `rounds/7/record` is the file `rounds/7/record+`. The plus sign, which no key may
contain, keeps the object `a` (file `a+`) apart from the folder of `a/b` (folder `a`).

Guarantees: a path is walked one folder at a time from an open root, each opened relative to the
last with O_NOFOLLOW, so that a symbolic link anywhere below the root is refused and never followed,
also when it is planted during the call. The root itself may be a link: the operator chose it.

Does not create the root: an unmounted disk must not be mistaken for an empty store. Raises OSError;
`os_errors` translates.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from shoal.storage.keys import is_segment

OBJECT_MARK: Final = "+"
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def split_key(key: str) -> tuple[list[str], str]:
    """Say where an object lies.

    Args:
        key: A checked key.

    Returns:
        The folders below the root, and the file's name.
    """
    *folders, last = key.split("/")
    return folders, last + OBJECT_MARK


@contextmanager
def open_root(root: Path) -> Iterator[int]:
    """Open the store's folder.

    Args:
        root: The store's folder.

    Yields:
        Its file descriptor.

    Raises:
        OSError: It is not there, not a folder, or not readable.
    """
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield root_fd
    finally:
        os.close(root_fd)


@contextmanager
def walk_to(root_fd: int, folders: list[str], *, create: bool = False) -> Iterator[int]:
    """Open a folder below the root.

    Args:
        root_fd: The open root.
        folders: The names on the way, outermost first.
        create: Make what is missing, durably.

    Yields:
        The last folder's file descriptor.

    Raises:
        OSError: A folder is missing or not a real folder.
    """
    folder_fd = os.dup(root_fd)
    try:
        for name in folders:
            if create:
                _make_folder(folder_fd, name)
            inner_fd = os.open(name, _OPEN_FOLDER, dir_fd=folder_fd)
            os.close(folder_fd)
            folder_fd = inner_fd
        yield folder_fd
    finally:
        os.close(folder_fd)


def _make_folder(parent_fd: int, name: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent_fd)
    # Also when it was there: another writer may have made it and not synced it yet, and our object
    # must not be durable in a folder that is not.
    os.fsync(parent_fd)


def open_object(folder_fd: int, name: str) -> int:
    """Open an object's file for reading.

    Args:
        folder_fd: The folder that it is in.
        name: The file's name.

    Returns:
        A file descriptor that the caller closes.

    Raises:
        OSError: It is missing, or not a plain file.
    """
    # O_NONBLOCK: a FIFO planted here must not hang the reader.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=folder_fd)


def is_plain_file(state: os.stat_result) -> bool:
    """Say whether this is what the store makes: a plain file."""
    return stat.S_ISREG(state.st_mode)


def keys_below(folder_fd: int, prefix: str, after: str, folder_key: str = "") -> Iterator[str]:
    """Walk a folder in the order of full keys, skipping folders that cannot hold a match.

    Files that the store did not make, links and temporary files are passed over.

    Args:
        folder_fd: The folder to walk.
        prefix: What wanted keys begin with.
        after: Only keys that sort after this one.
        folder_key: What the keys in this folder begin with: empty, or ending in a slash.

    Yields:
        Keys in lexicographic order.

    Raises:
        OSError: A folder cannot be read.
    """
    for name in sorted(_entries(folder_fd)):
        key = folder_key + name
        if not name.endswith("/"):
            if key.startswith(prefix) and key > after:
                yield key
        elif _may_hold(key, prefix, after):
            with walk_to(folder_fd, [name[:-1]]) as inner_fd:
                yield from keys_below(inner_fd, prefix, after, key)


def _entries(folder_fd: int) -> Iterator[str]:
    """Objects by their name, folders by their name and a slash: so they sort as full keys do."""
    with os.scandir(folder_fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if is_segment(entry.name):
                    yield entry.name + "/"
            elif entry.is_file(follow_symlinks=False):
                name = entry.name.removesuffix(OBJECT_MARK)
                if name != entry.name and is_segment(name):
                    yield name


def _may_hold(folder_key: str, prefix: str, after: str) -> bool:
    matches = folder_key.startswith(prefix) or prefix.startswith(folder_key)
    return matches and (folder_key > after or after.startswith(folder_key))
