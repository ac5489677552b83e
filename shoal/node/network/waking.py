"""Notices that this machine slept, or that its clock was set.

Guarantees: whoever watches is called within a second of running on after a gap, whatever made it: a
closed laptop (the monotonic clock stands still), a stopped process (it does not), or a clock that
was set forwards or backwards. A busy machine that looks like it costs one needless call.

Does not do: say how long the machine slept; only the wall clock knows, and it may be wrong.
"""

import asyncio
from collections.abc import Callable
from typing import Final

TICK_S: Final = 1.0
MAX_GAP_S: Final = 10.0


class GapDetector:
    """Compares wall-clock readings that should be `TICK_S` apart."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def look(self, now_s: float) -> bool:
        """Take a reading.

        Args:
            now_s: Unix seconds.

        Returns:
            Whether more time passed since the last one than can be, or less than none.
        """
        last_s, self._last_s = self._last_s, now_s
        return last_s is not None and not -MAX_GAP_S <= now_s - last_s - TICK_S <= MAX_GAP_S


async def watch_for_gaps(now_s: Callable[[], float], on_gap: Callable[[], None]) -> None:
    """Call back after every gap, for ever.

    Args:
        now_s: Unix seconds.
        on_gap: Must not block.
    """
    detector = GapDetector()
    while True:
        if detector.look(now_s()):
            on_gap()
        await asyncio.sleep(TICK_S)
