"""Waiting for what happens in other processes, which send no events."""

import asyncio
import subprocess
import sys
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


async def run_python(*arguments: str) -> str:
    """Runs Python to its end and gives what it printed; it is ended if nobody waits any more."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        said, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ChildProcessError(f"{arguments}: {complaint.decode(errors='replace')[-500:]}")
    return said.decode().strip()
