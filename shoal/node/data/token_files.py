"""Token files: little-endian ids, nothing else, written whole or not at all.

Guarantees: a file appears under its name only when all of it is on the disk, so that an interrupted
run leaves no file that looks whole.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from shoal.node.data.errors import DataError

_MAX_UINT16_VOCAB: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """A file that has been written.

    Attributes:
        path: Where it is.
        sha256: Its content's digest, 32 bytes.
        num_bytes: Its length.
    """

    path: Path
    sha256: bytes
    num_bytes: int


def token_bytes_for(vocab_size: int) -> int:
    """Say how many bytes one token id takes: 2 if every id fits, else 4."""
    return 2 if vocab_size <= _MAX_UINT16_VOCAB else 4


def token_dtype(token_bytes: int) -> np.dtype[np.unsignedinteger]:
    """Give the type of the ids in a file.

    Args:
        token_bytes: 2 or 4.

    Returns:
        Little-endian uint16 or uint32.

    Raises:
        ValueError: Another width.
    """
    match token_bytes:
        case 2:
            return np.dtype("<u2")
        case 4:
            return np.dtype("<u4")
        case _:
            raise ValueError(f"token_bytes {token_bytes}, expected 2 or 4")


def write_whole(path: Path, content: bytes) -> DataFile:
    """Write a file so that it is there completely or not at all, durably.

    Args:
        path: Where to; replaced if there.
        content: All of it.

    Returns:
        The file with its digest.

    Raises:
        DataError: The disk is full, read-only or gone.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise DataError(
            path,
            expected=f"room and permission to write {len(content)} bytes",
            found=error.strerror or str(error),
            fix="free some space or choose another folder",
        ) from error
    return DataFile(path=path, sha256=hashlib.sha256(content).digest(), num_bytes=len(content))


def sync_folder(folder: Path) -> None:
    """Make new, renamed and removed names in a folder durable.

    Args:
        folder: Which one.

    Raises:
        OSError: The system refuses.
    """
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)
