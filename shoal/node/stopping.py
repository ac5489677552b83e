"""Signals: the first asks the node to leave at the next good moment, the second ends it at once.

Guarantees: works for SIGINT (Ctrl+C) and SIGTERM alike; a child of `shoal swarm` also leaves when
its parent is gone, however that ended. Does not do: clean up (the loop and the operating system
do).
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType

_LEFT_AT_ONCE = 130
_ONE_MOMENT_S = 0.1
"""`timeout` and others signal a process and then its group: that is one wish, not two."""
_TOLD = b"stopping: finishing what is in progress (again to leave at once)\n"


def install(stop: asyncio.Event) -> None:
    """Makes signals set `stop`; call it in the main thread, inside the running event loop."""
    loop = asyncio.get_running_loop()
    # Not loop.add_signal_handler: a loop that is busy would not hear the second one either.
    asked_at_s: list[float] = []

    def on_signal(_: int, __: FrameType | None) -> None:
        now_s = time.monotonic()
        if asked_at_s and now_s - asked_at_s[0] < _ONE_MOMENT_S:
            return
        if asked_at_s or stop.is_set():
            os._exit(_LEFT_AT_ONCE)
        asked_at_s.append(now_s)
        with contextlib.suppress(OSError):
            # Not print: it may be in the middle of another line.
            os.write(sys.stderr.fileno(), _TOLD)
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def leave_with_parent() -> None:
    """Ends this process when standard input closes: the parent holds the other end of the pipe."""

    def watch() -> None:
        # Not sys.stdin: its lock, held by a thread that waits, aborts the interpreter's end.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        timer = threading.Timer(20.0, os._exit, (_LEFT_AT_ONCE,))
        timer.daemon = True
        timer.start()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
