"""Where the bytes go that the S3 store reads, and how far they are.

Guarantees: progress is told in the order of the object, also where pieces arrive side by side. Safe
to use from several threads, each of them with a piece of its own. No I/O.
"""

from threading import Lock

from shoal.storage.filling import Arrived


class Piece:
    """A range of the object on its way into memory.

    Args:
        start: Its first byte, in the object.
        sink: Where it goes.

    Attributes:
        num_done: How many bytes of it are there.
    """

    def __init__(self, start: int, sink: memoryview) -> None:
        self.start = start
        self.sink = sink
        self.num_done = 0

    def add(self, block: bytes) -> None:
        """Put the next bytes to those that are there.

        Args:
            block: No more than are missing.
        """
        self.sink[self.num_done : self.num_done + len(block)] = block
        self.num_done += len(block)

    @property
    def num_missing(self) -> int:
        """How many bytes of it are not there yet."""
        return self.sink.nbytes - self.num_done


class Filling:
    """Room of the caller's, and what to tell of it.

    Args:
        room: Exactly as long as the object has to be.
        arrived: Told how many bytes from the first on are there.
    """

    def __init__(self, room: memoryview, arrived: Arrived) -> None:
        self.room = room
        self._arrived = arrived
        self._lock = Lock()
        self._pieces: list[Piece] = []

    def begin(self, pieces: list[Piece]) -> None:
        """Say which pieces the room consists of, in order; what was there before is void."""
        with self._lock:
            self._pieces = pieces
            self._arrived(0)

    def tell(self) -> None:
        """Say how far it is; in order, also where pieces arrive side by side."""
        with self._lock:
            num_arrived = 0
            for piece in self._pieces:
                num_arrived += piece.num_done
                if piece.num_missing:
                    break
            self._arrived(num_arrived)
