"""Ports for servers that are started later, perhaps again and again, by other processes.

Guarantees: as long as this process lives, the kernel gives a port of `free_port` to nobody who asks
for any port, neither to listen nor for a connection. Who listens there must set SO_REUSEADDR, as
asyncio, aiohttp and Go do. Does not do: IPv6.
"""

import socket

HOST = "127.0.0.1"

_kept: list[socket.socket] = []
"""Bound, never listening: connections are refused until the server is there."""


def free_port() -> int:
    """A port of loopback that nobody else has, and nobody else is given later on."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind((HOST, 0))
    _kept.append(keeper)
    port: int = keeper.getsockname()[1]
    return port
