"""Signals: the first asks the node to leave at the next good moment, the second ends it at once.

Guarantees: works for SIGINT (Ctrl+C) and SIGTERM alike; a child of `shoal swarm` also leaves when
its parent is gone, however that ended. Does not do: clean up (the loop and the operating system
do).
"""

import asyncio
import os
import signal
import sys
import threading

_LEFT_AT_ONCE = 130


def install(stop: asyncio.Event) -> None:
    """Makes signals set `stop`; call it inside the running event loop."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(_LEFT_AT_ONCE)
        print("stopping: finishing what is in progress (again to leave at once)", file=sys.stderr)  # noqa: T201  # for the person at the terminal
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


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
