"""Reading an object of known length straight into the caller's memory.

A payload's length is known before it is asked for. Whoever knows it gives room of exactly that
length, is told how much has arrived, and can look at the beginning while the rest is on its way;
nothing is copied once more.

Guarantees: `read_into` works with every store; one that cannot fill room itself is asked for the
whole object, which is then copied once. Does not look at what the bytes are.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from shoal.storage.errors import ObjectTooLargeError, ObjectTooShortError
from shoal.storage.object_store import ObjectStore

Arrived = Callable[[int], None]
"""Told how many bytes of the room, from its first, are there and will not change any more; a number
below the last one means that the object arrives again. May be called in any thread."""


@runtime_checkable
class FillingStore(Protocol):
    """A store that can do it without a copy."""

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        """Read a whole object into room of exactly its length.

        When this returns, nothing writes into the room any more; after an error something may.

        Args:
            key: Which object.
            room: Where to put it.
            arrived: Told of the progress.

        Raises:
            ObjectTooLargeError: The object is longer than the room; nothing was read.
            ObjectTooShortError: It is shorter; nothing was read.
            StorageError: As `ObjectStore.get`.
        """
        ...


async def read_into(store: ObjectStore, key: str, room: memoryview, arrived: Arrived) -> None:
    """Read a whole object into room of exactly its length, from any store.

    Args:
        store: Where it is.
        key: Which object.
        room: Where to put it.
        arrived: Told of the progress.

    Raises:
        ObjectTooLargeError: The object is longer than the room.
        ObjectTooShortError: It is shorter.
        StorageError: As `ObjectStore.get`.
    """
    if isinstance(store, FillingStore):
        await store.get_into(key, room, arrived)
        return
    data = await store.get(key, max_bytes=room.nbytes)
    require_length(key, len(data), room)
    room[:] = data
    arrived(len(data))


def require_length(key: str, num_bytes: int, room: memoryview) -> None:
    """Let an object pass that fits its room.

    Args:
        key: For the message.
        num_bytes: The object's length.
        room: Where it is to go.

    Raises:
        ObjectTooLargeError: The object is longer.
        ObjectTooShortError: It is shorter.
    """
    if num_bytes == room.nbytes:
        return
    text = f"object {key!r}: {num_bytes} bytes, expected {room.nbytes}"
    error = ObjectTooLargeError if num_bytes > room.nbytes else ObjectTooShortError
    raise error(text, key)
