"""The files of the objects that this peer serves.

Guarantees: a file is whole or not there; the folder holds at most so many bytes, and the oldest
objects make room for new ones; whatever an earlier process has left in it is removed at start.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from shoal.storage.errors import StorageFullError


@dataclass(frozen=True, slots=True)
class KeptObject:
    """A file that is served."""

    path: Path
    num_bytes: int
    is_ours: bool
    """Whether the file lies in our folder and goes when it is served no longer."""


class KeptObjects:
    """Objects by id, oldest first.

    Args:
        folder: Ours alone; emptied here.
        max_bytes: The most that the files in it may have.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._objects: dict[bytes, KeptObject] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)

    def find(self, object_id: bytes) -> KeptObject | None:
        """Say whether an object is kept, and where."""
        return self._objects.get(object_id)

    def items(self) -> tuple[tuple[bytes, KeptObject], ...]:
        """All objects, oldest first."""
        return tuple(self._objects.items())

    def make_room(self, num_bytes: int) -> tuple[bytes, ...]:
        """Forget the oldest objects of our folder until there is room.

        Args:
            num_bytes: How much is needed.

        Returns:
            The ids that are no longer kept.

        Raises:
            StorageFullError: More is needed than the folder may ever have.
        """
        if num_bytes > self._max_bytes:
            text = f"an object of {num_bytes} bytes, at most {self._max_bytes} are kept in all"
            raise StorageFullError(text, "", str(self._folder), self._max_bytes)
        gone = []
        ours = {key: one.num_bytes for key, one in self._objects.items() if one.is_ours}
        used = sum(ours.values())
        for object_id, size in ours.items():
            if used + num_bytes <= self._max_bytes:
                break
            used -= size
            self.drop(object_id)
            gone.append(object_id)
        return tuple(gone)

    def write(self, object_id: bytes, data: bytes | memoryview) -> KeptObject:
        """Write an object's file; `make_room` comes first.

        Args:
            object_id: Its id.
            data: All of it.

        Returns:
            Where it is.

        Raises:
            OSError: It cannot be written.
        """
        path = self._folder / object_id.hex()
        partial = path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.replace(path)
        return KeptObject(path, len(data), is_ours=True)

    def add(self, object_id: bytes, kept: KeptObject) -> None:
        """Remember an object; replaces what had this id."""
        known = self._objects.pop(object_id, None)
        if known is not None and known.path != kept.path and known.is_ours:
            known.path.unlink(missing_ok=True)
        self._objects[object_id] = kept

    def drop(self, object_id: bytes) -> None:
        """Forget an object and remove its file if it is ours; idempotent."""
        kept = self._objects.pop(object_id, None)
        if kept is not None and kept.is_ours:
            kept.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Forget everything."""
        self._objects.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
