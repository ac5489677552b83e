"""How a store tells whoever is counting what happens inside one transfer.

A store calls `note_moved` when bytes have really crossed the link and `note_retry` when it begins
again; both do nothing unless a `Progress` is being kept. The record travels in a context variable,
so the `ObjectStore` interface stays as it is and worker threads started with `asyncio.to_thread`
report to the right transfer.

Guarantees: notes of one transfer never reach another one's record. Does not add anything up;
`meter` does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock


class Progress:
    """What has happened so far in one transfer; parts of it may report from several threads.

    Args:
        now_s: The clock of the first byte, seconds.

    Attributes:
        num_bytes: Bytes moved so far, those of failed attempts included.
        first_byte_at_s: When the first of them moved; None before that.
        num_retries: Attempts after the first.
    """

    __slots__ = ("_lock", "_now_s", "first_byte_at_s", "num_bytes", "num_retries")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = Lock()
        self.num_bytes = 0
        self.first_byte_at_s: float | None = None
        self.num_retries = 0

    def moved(self, num_bytes: int) -> None:
        """Add bytes that have crossed the link.

        Args:
            num_bytes: How many since the last note.
        """
        with self._lock:
            if num_bytes and self.first_byte_at_s is None:
                self.first_byte_at_s = self._now_s()
            self.num_bytes += num_bytes

    def retried(self) -> None:
        """Add one more attempt."""
        with self._lock:
            self.num_retries += 1


_current: ContextVar[Progress | None] = ContextVar("shoal_storage_progress", default=None)


@contextmanager
def keeping(progress: Progress) -> Iterator[None]:
    """Send the notes of everything called inside to `progress`.

    Args:
        progress: The record to fill.

    Yields:
        Nothing.
    """
    token = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(token)


def note_moved(num_bytes: int) -> None:
    """Say that bytes have crossed the link.

    Args:
        num_bytes: How many since the last note.
    """
    progress = _current.get()
    if progress is not None:
        progress.moved(num_bytes)


def note_retry() -> None:
    """Say that the transfer begins again."""
    progress = _current.get()
    if progress is not None:
        progress.retried()
