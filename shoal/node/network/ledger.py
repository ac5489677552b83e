"""The small objects that this peer serves for as long as its state folder is there.

Records and the manifest, one file each, named by the object's id: the network process serves the
folder, so that nothing has to be told again after a restart, and a newcomer finds every record at
every peer that has followed the run.

Guarantees: a file is whole or not there. Does not check what the bytes mean.
"""

import asyncio
from pathlib import Path

from shoal.node.checkpoint import write_atomically
from shoal.storage.os_errors import translated


class Ledger:
    """Files by object id.

    Args:
        folder: Ours alone; made here.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def read(self, object_id: bytes, max_bytes: int) -> bytes | None:
        """The bytes of an object; None if it is not here, or longer than `max_bytes`."""
        return await asyncio.to_thread(self._read, object_id, max_bytes)

    async def write(self, object_id: bytes, data: bytes) -> None:
        """Keep an object; replaces what had this id.

        Raises:
            StorageFullError: There is no room.
            AccessDeniedError: The folder may not be written.
            StorageUnavailableError: The disk failed.
        """
        await asyncio.to_thread(self._write, object_id, data)

    async def drop(self, object_id: bytes) -> None:
        """Keep an object no longer; idempotent."""
        await asyncio.to_thread(self._drop, object_id)

    def _path(self, object_id: bytes) -> Path:
        return self._folder / object_id.hex()

    def _read(self, object_id: bytes, max_bytes: int) -> bytes | None:
        try:
            with self._path(object_id).open("rb") as file:
                data = file.read(max_bytes + 1)
        except OSError:
            return None
        return data if len(data) <= max_bytes else None

    def _drop(self, object_id: bytes) -> None:
        with translated(self._folder, object_id.hex()):
            self._path(object_id).unlink(missing_ok=True)

    def _write(self, object_id: bytes, data: bytes) -> None:
        with translated(self._folder, object_id.hex()):
            write_atomically(self._path(object_id), data)
