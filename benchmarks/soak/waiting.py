"""Waiting for what happens in other processes, which send no events."""

import asyncio
import time
from collections.abc import Callable


async def happens(what: Callable[[], bool], patience_s: float, every_s: float = 0.1) -> bool:
    """Looks until it is so; whether it was, in time."""
    ends_at_s = time.monotonic() + patience_s
    while not what():
        if time.monotonic() > ends_at_s:
            return False
        await asyncio.sleep(every_s)
    return True
