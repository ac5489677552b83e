"""The time of one call: one deadline for all its attempts, and a least speed for its transfers.

Guarantees: `CallClock.check` and `Pace.moved` raise `GiveUpError` as soon as the time is over, the
call is no longer wanted, or the bytes come too slowly, those of all parts that travel side by side
taken together: they share one line. Waits for this node's own cap count in neither. Safe to use
from several threads.
"""

import threading
from collections.abc import Callable

from shoal.storage.s3_answers import GiveUpError
from shoal.storage.s3_config import S3Limits


class Moved:
    """How many bytes one call has moved, all its parts together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_bytes = 0

    def add(self, num_bytes: int) -> int:
        """Add bytes.

        Args:
            num_bytes: How many; may be 0.

        Returns:
            How many there are now.
        """
        with self._lock:
            self._num_bytes += num_bytes
            return self._num_bytes


class CallClock:
    """How much time one call still has.

    Args:
        limits: Its deadline.
        now_s: A clock in seconds that does not go back.
        stopped_by: Another clock; when it is stopped, this one is too.
        ends_at_s: When the time is over; None: the deadline from now on.
        excused_s: How long the call has waited for our own cap, seconds.
        moved: What the call has moved so far; None: nothing.
    """

    def __init__(
        self,
        limits: S3Limits,
        now_s: Callable[[], float],
        *,
        stopped_by: "CallClock | None" = None,
        ends_at_s: float | None = None,
        excused_s: Callable[[], float] = lambda: 0.0,
        moved: "Moved | None" = None,
    ) -> None:
        self.limits = limits
        self.now_s = now_s
        self.moved = moved or Moved()
        self._stopped_by = stopped_by
        self._stopped = threading.Event()
        self._excused_s = excused_s
        self._ends_at_s = now_s() + limits.deadline_s if ends_at_s is None else ends_at_s

    def child(self) -> "CallClock":
        """Give a clock that can be stopped without stopping this one.

        Returns:
            The clock; it has the same deadline.
        """
        return CallClock(
            self.limits,
            self.now_s,
            stopped_by=self,
            ends_at_s=self._ends_at_s,
            excused_s=self._excused_s,
            moved=self.moved,
        )

    def stop(self) -> None:
        """Say that nobody waits for this call any more."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether nobody waits any more."""
        return self._stopped.is_set() or (
            self._stopped_by is not None and self._stopped_by.is_stopped
        )

    def remaining_s(self) -> float:
        """Give the time that is left.

        Returns:
            Seconds; more than 0.

        Raises:
            GiveUpError: Nothing is left, or the call was stopped.
        """
        if self.is_stopped:
            raise GiveUpError("the call was cancelled")
        remaining_s = self._ends_at_s + self._excused_s() - self.now_s()
        if remaining_s <= 0:
            raise GiveUpError(f"not done within {self.limits.deadline_s:g} s")
        return remaining_s

    def counted_s(self) -> float:
        """Give the time by a clock that stands still while the call waits for our own cap.

        Returns:
            Seconds; only differences mean something.
        """
        return self.now_s() - self._excused_s()

    def check(self) -> None:
        """Go on only if there is time left.

        Raises:
            GiveUpError: Nothing is left, or the call was stopped.
        """
        self.remaining_s()


class Pace:
    """Watches one transfer, that it is not too slow together with the others of its call.

    Args:
        clock: The call's time.
    """

    def __init__(self, clock: CallClock) -> None:
        self._clock = clock
        self._window_started_at_s = clock.now_s()
        self._num_bytes_before = clock.moved.add(0)

    def excuse(self, waited_s: float) -> None:
        """Leave out time that passed because of our own cap.

        Args:
            waited_s: Seconds since the last call.
        """
        self._window_started_at_s += waited_s

    def moved(self, num_bytes: int) -> None:
        """Add bytes that have moved, and go on only if they come fast enough.

        Args:
            num_bytes: How many since the last call.

        Raises:
            GiveUpError: Too slow, too late, or no longer wanted.
        """
        self._clock.check()
        num_bytes_now = self._clock.moved.add(num_bytes)
        limits = self._clock.limits
        elapsed_s = self._clock.now_s() - self._window_started_at_s
        if elapsed_s < limits.min_rate_window_s:
            return
        window_bytes = num_bytes_now - self._num_bytes_before
        if window_bytes < limits.min_bytes_per_s * elapsed_s:
            raise GiveUpError(
                f"at least {limits.min_bytes_per_s:g} bytes per second expected, "
                f"{window_bytes} bytes moved in {elapsed_s:.1f} s"
            )
        self._window_started_at_s += elapsed_s
        self._num_bytes_before = num_bytes_now
