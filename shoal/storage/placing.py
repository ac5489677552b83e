"""How the directory store writes: whole, once, durably.

A write goes to a temporary file in `.tmp` below the root (the same file system; no key begins with
a dot), is synced, and then gets its name in one step: a hard link for create-once, which fails if
the name is taken, a rename to overwrite. Then the folder is synced.

Guarantees: killed at any moment, a writer leaves a whole object or none, and at most one temporary
file, which `sweep` removes once it is an hour old. Of racing create-once writers one wins.

Where hard links do not exist (FAT, some network disks) create-once takes an advisory lock on one
file for the check and the rename; the kernel frees it when its holder dies. All writers to one such
disk take that same way.

Raises OSError and FileExistsError; `directory` translates.
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from shoal.storage.folders import walk_to

TMP_FOLDER: Final = ".tmp"
LEFTOVER_AGE_S: Final = 3600.0

_LOCK_NAME: Final = "create.lock"
_NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
)


def write_object(
    root_fd: int, folders: list[str], name: str, data: bytes | memoryview, *, overwrite: bool
) -> None:
    """Write one object and make it durable.

    Args:
        root_fd: The open root.
        folders: Folders below the root; made where missing.
        name: The object's file name.
        data: The whole object.
        overwrite: Replace what is there.

    Raises:
        FileExistsError: The name is taken and `overwrite` is false.
        OSError: The system refuses; nothing of the object is visible.
    """
    with (
        walk_to(root_fd, [TMP_FOLDER], create=True) as tmp_fd,
        walk_to(root_fd, folders, create=True) as folder_fd,
    ):
        if not overwrite:
            # An early answer that spares the writing; the link below is what decides.
            _check_free(folder_fd, name)
        with _temporary(tmp_fd, data) as tmp_name:
            if overwrite:
                os.replace(tmp_name, name, src_dir_fd=tmp_fd, dst_dir_fd=folder_fd)
            else:
                _create(tmp_fd, tmp_name, folder_fd, name)
            os.fsync(folder_fd)


def sweep(root_fd: int, now_s: float) -> None:
    """Remove temporary files that killed writers have left; best effort.

    Younger files are left alone: their writers may be alive.

    Args:
        root_fd: The open root.
        now_s: Unix seconds.
    """
    # A leftover that stays costs only room: a disk may be read-only, another process may sweep too.
    with suppress(OSError), walk_to(root_fd, [TMP_FOLDER]) as tmp_fd:
        for name in os.listdir(tmp_fd):  # noqa: PTH208 - pathlib knows no dir_fd
            with suppress(OSError):
                state = os.stat(name, dir_fd=tmp_fd, follow_symlinks=False)
                if name != _LOCK_NAME and state.st_mtime < now_s - LEFTOVER_AGE_S:
                    os.unlink(name, dir_fd=tmp_fd)


@contextmanager
def _temporary(tmp_fd: int, data: bytes | memoryview) -> Iterator[str]:
    name = secrets.token_hex(16)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # 0o666 and the umask: the operator of a shared disk decides who reads it.
    file_fd = os.open(name, flags, 0o666, dir_fd=tmp_fd)
    try:
        try:
            _write_all(file_fd, data)
        finally:
            os.close(file_fd)
        yield name
    finally:
        # After a rename it is gone already.
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=tmp_fd)


def _write_all(file_fd: int, data: bytes | memoryview) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(file_fd, rest) :]
    os.fsync(file_fd)


def _create(tmp_fd: int, tmp_name: str, folder_fd: int, name: str) -> None:
    try:
        os.link(tmp_name, name, src_dir_fd=tmp_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
    except FileExistsError:
        # NFS may repeat a link that was answered too late: then the name is ours.
        if os.stat(tmp_name, dir_fd=tmp_fd).st_nlink == 1:
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _create_locked(tmp_fd, tmp_name, folder_fd, name)


def _create_locked(tmp_fd: int, tmp_name: str, folder_fd: int, name: str) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock_fd = os.open(_LOCK_NAME, flags, 0o666, dir_fd=tmp_fd)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        _check_free(folder_fd, name)
        os.rename(tmp_name, name, src_dir_fd=tmp_fd, dst_dir_fd=folder_fd)
    finally:
        os.close(lock_fd)


def _check_free(folder_fd: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
