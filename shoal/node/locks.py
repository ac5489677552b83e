"""One process per key and per state folder on this machine.

Guarantees: while a lock is held no second process gets it; the operating system frees it when the
process ends, however it ends. Does not do: see other machines (there the create-once payload gives
a doubled key away).
"""

import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from shoal.node.errors import ConfigError, ResourceError, StateInUseError

LOCK_NAME = "lock"


def lock_file(path: Path, what: str) -> IO[bytes]:
    """Locks an existing file; keep the result open as long as the lock is needed.

    Args:
        path: the file.
        what: for the message, for example "the key".

    Raises:
        StateInUseError: another process holds it.
        ConfigError: the file cannot be opened.
    """
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115  # pathlib knows no opener; the caller closes
    except OSError as error:
        raise ConfigError(path, what, "a readable file", error.strerror or "") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StateInUseError(
            f"E_KEY_IN_USE {what} {path} is used by another process on this machine; stop that one "
            "first, or give this node a key and a state_dir of its own"
        ) from error
    return file


def lock_folder(folder: Path, what: str) -> IO[bytes]:
    """Locks a folder (made if need be) by a file in it.

    Raises:
        StateInUseError: another process holds it.
        ConfigError: the folder cannot be made or written.
        ResourceError: the disk is full.
    """
    path = folder / LOCK_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(f"cannot write {path}: {error.strerror}") from error
        raise ConfigError(folder, what, "a writable folder", error.strerror or "") from error
    return lock_file(path, what)
