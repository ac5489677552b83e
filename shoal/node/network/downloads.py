"""One object on its way here, possibly from several peers one after the other.

Guarantees: never more bytes than the object has; what is kept is a beginning of the object as its
sources sent it; after wrong bytes everything begins again, and then no two sources are mixed, so
that the one that sent them can be told apart; with `Copies` nothing that others than the author
gave is shown before it is whole and judged. Bytes are noted as progress of whatever transfer the
download was made in, those of failed attempts included.
"""

import contextvars
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shoal.node.network.errors import PeerUnavailableError, WrongBytesError
from shoal.storage.allowance import count
from shoal.storage.filling import Arrived
from shoal.storage.progress import note_moved


class MixedBytesError(WrongBytesError):
    """The whole is wrong, and several sources gave it: nobody knows which of them was wrong."""


Source = tuple[str, ...]
"""The addresses of one peer, all with its libp2p id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """How to tell who is to blame for the bytes of an object whose id is not their hash."""

    authors: tuple[Source, ...]
    """Those who answer for it themselves: what they give goes to the caller as it is."""
    check: Callable[[bytes, memoryview], bool]
    """From id and bytes: whether what others give is what the author made."""


class RoomSink:
    """Puts the bytes into the caller's room and tells how far they are.

    Args:
        room: As long as the object.
        arrived: Told how many bytes are there; 0 when they begin again.
    """

    def __init__(self, room: memoryview, arrived: Arrived) -> None:
        self._room = room
        self._arrived = arrived
        self._num_bytes = 0

    def add(self, data: bytes) -> None:
        """Append bytes."""
        end = self._num_bytes + len(data)
        self._room[self._num_bytes : end] = data
        self._num_bytes = end

    def tell(self) -> None:
        """Say how many bytes are there."""
        self._arrived(self._num_bytes)

    def passes(self, check: Callable[[memoryview], bool]) -> bool:
        """Let the whole be judged."""
        return check(self._room)

    def clear(self) -> None:
        """Forget all bytes."""
        self._num_bytes = 0
        self._arrived(0)


class Download:
    """What has come so far.

    Args:
        object_id: Which object.
        total_bytes: How long it is.
        named_by_hash: Whether the id is the SHA-256 of the bytes.
        sink: Takes the bytes.
        copies: How to judge what others than the author give; None: not at all.

    Attributes:
        num_bytes: Bytes that are kept.
        is_unmixed: Whether the bytes of only one source at a time are kept, from now on.
    """

    def __init__(
        self,
        object_id: bytes,
        total_bytes: int,
        *,
        named_by_hash: bool,
        sink: RoomSink,
        copies: Copies | None = None,
    ) -> None:
        self.object_id = object_id
        self.total_bytes = total_bytes
        # Chunks are taken by the task that reads the socket: the notes are for this one's.
        self._context = contextvars.copy_context()
        self._named_by_hash = named_by_hash
        self._sink = sink
        self._copies = copies
        self._hash = hashlib.sha256()
        self._sources: list[Source] = []
        self._current: Source = ()
        self.num_bytes = 0
        self.is_unmixed = False

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have come."""
        return self.num_bytes == self.total_bytes

    def begin(self, source: Source) -> None:
        """Go on with a source.

        Args:
            source: Where the next bytes come from.
        """
        if self.offset_for(source) < self.num_bytes:
            self._clear()
        self._current = source

    def offset_for(self, source: Source) -> int:
        """Where a source would go on: at the end of what is kept, or at the very beginning.

        Args:
            source: Which.
        """
        return 0 if self.is_unmixed and self._sources != [source] else self.num_bytes

    def take(self, data: bytes) -> None:
        """Keep the next bytes.

        Args:
            data: A chunk.

        Raises:
            WrongBytesError: More than the object has.
        """
        if self.num_bytes + len(data) > self.total_bytes:
            raise WrongBytesError(f"more than {self.total_bytes} bytes", "")
        if self._current not in self._sources:
            self._sources.append(self._current)
        self._context.run(_note, len(data))
        self._sink.add(data)
        if not self._is_to_judge:
            self._sink.tell()
        if self._named_by_hash:
            self._hash.update(data)
        self.num_bytes += len(data)

    def finish(self) -> None:
        """Check the whole.

        Raises:
            PeerUnavailableError: Something is missing.
            MixedBytesError: It is not the object, and several sources gave it.
            WrongBytesError: It is not the object. In both cases everything is forgotten.
        """
        name = self.object_id.hex()
        if not self.is_whole:
            text = f"{self.num_bytes} of {self.total_bytes} bytes came"
            raise PeerUnavailableError(text, name)
        if self._is_right():
            if self._is_to_judge:
                self._sink.tell()
            return
        text = f"bytes of {len(self._sources)} sources are not {name}"
        error = MixedBytesError if len(self._sources) > 1 else WrongBytesError
        self.is_unmixed = True
        self._clear()
        raise error(text, name)

    @property
    def _is_to_judge(self) -> bool:
        """Whether somebody else than the author gave some of it; nobody is shown it before."""
        copies = self._copies
        return copies is not None and not set(self._sources) <= set(copies.authors)

    def _is_right(self) -> bool:
        if self._named_by_hash:
            return self._hash.digest() == self.object_id
        if self._copies is None or not self._is_to_judge:
            return True
        return self._sink.passes(partial(self._copies.check, self.object_id))

    def _clear(self) -> None:
        self._sink.clear()
        self._hash = hashlib.sha256()
        self._sources = []
        self.num_bytes = 0


def _note(num_bytes: int) -> None:
    note_moved(num_bytes)
    # The network process keeps to its part of the cap; the month's sum is kept here.
    count("down", num_bytes)
