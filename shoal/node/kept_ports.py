"""Ports of this machine for servers that are started later, perhaps again and again, by others.

Guarantees: as long as the block runs, the kernel gives a port of it to nobody who asks for any
port, neither to listen nor for a connection; until the server is there connections are refused.
Who listens there must set SO_REUSEADDR, as asyncio, aiohttp and Go do. Does not do: IPv6.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

HOST: Final = "127.0.0.1"


@contextmanager
def kept_ports() -> Iterator[Callable[[], int]]:
    """Gives what chooses free ports; all are let go at the end."""
    with ExitStack() as held:

        def free_port() -> int:
            # Bound, never listening.
            keeper = held.enter_context(socket.socket())
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keeper.bind((HOST, 0))
            port: int = keeper.getsockname()[1]
            return port

        yield free_port
