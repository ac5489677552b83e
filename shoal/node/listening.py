"""A port for everybody: an aiohttp application behind a bounded number of connections.

Guarantees: never more than so many connections in all, nor from one network (an IPv4 address, an
IPv6 /64) unless it is this machine, where a reverse proxy may stand for everybody; one that brings
no whole request within `IDLE_S` is closed; lack of descriptors delays new connections and ends
nothing.

Does not do: TLS, or know what is served.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from shoal.node.file_limit import raise_file_limit

logger = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

IDLE_S: Final = 30.0
MAX_CONNECTIONS: Final = 2048
MAX_OF_ONE_NETWORK: Final = 512
"""Several peers behind one address, each with the connections of a gather."""
_FILES: Final = 8192
_BACKLOG: Final = 128
_BREATH_S: Final = 0.5


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, shutdown_s: float = 60.0
) -> AsyncIterator[tuple[str, int]]:
    """Serves an application while the context is open.

    Args:
        app: what answers.
        host: an address or a name of this machine.
        port: 0 for any free one.
        shutdown_s: how long requests that are under way may take at the end.

    Yields:
        The base URL and the real port.

    Raises:
        OSError: the address is taken or not this machine's.
    """
    runner = web.AppRunner(
        app, access_log=None, keepalive_timeout=IDLE_S, shutdown_timeout=shutdown_s
    )
    await runner.setup()
    try:
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(s) for s in await _bound(host, port)]
            guests = _Guests()
            doors = [asyncio.create_task(_let_in(found, runner, guests)) for found in sockets]
            try:
                yield _url(sockets[0]), sockets[0].getsockname()[1]
            finally:
                for door in doors:
                    door.cancel()
                await asyncio.gather(*doors, return_exceptions=True)
    finally:
        await runner.cleanup()


async def _bound(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    flags = socket.AI_PASSIVE
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    with contextlib.ExitStack() as held:
        sockets: list[socket.socket] = []
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            # A name with two families has the same port for both.
            wanted = (address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:])
            door = socket.create_server(wanted, family=family, backlog=_BACKLOG)
            sockets.append(held.enter_context(door))
            door.setblocking(False)
        held.pop_all()
    return sockets


async def _let_in(door: socket.socket, runner: web.AppRunner, guests: "_Guests") -> None:
    loop = asyncio.get_running_loop()
    server = runner.server
    while server is not None:
        try:
            sock, address = await loop.sock_accept(door)
        except OSError as error:
            logger.warning("no new connection for now: %s", error)
            await asyncio.sleep(_BREATH_S)
            continue
        if not has_room(guests.networks(server.connections), address[0], guests.most):
            sock.close()
            continue
        try:
            _, connection = await loop.connect_accepted_socket(server, sock)
        except OSError:
            sock.close()  # gone already
        else:
            guests.take(connection, address[0])


class _Guests:
    """Whose connections are open."""

    def __init__(self) -> None:
        # Half of the files are for connections.
        self.most = min(MAX_CONNECTIONS, raise_file_limit(_FILES) // 2)
        self._networks: dict[object, Network] = {}

    def take(self, connection: object, host: str) -> None:
        self._networks[connection] = network_of(host)

    def networks(self, connections: Collection[object]) -> list[Network]:
        """Those of the connections that are open; all others are forgotten."""
        networks = self._networks
        self._networks = {one: networks[one] for one in connections if one in networks}
        return list(self._networks.values())


def has_room(networks: Collection[Network], host: str, most: int = MAX_CONNECTIONS) -> bool:
    """Whether one more connection may come.

    Args:
        networks: of each connection that is open, the one it comes from.
        host: the address where the new one comes from.
        most: how many may be open.
    """
    if len(networks) >= most:
        return False
    if _plain(host).is_loopback:
        return True
    network = network_of(host)
    return sum(found == network for found in networks) < min(MAX_OF_ONE_NETWORK, most // 4)


def network_of(host: str) -> Network:
    """Who may be one and the same: an IPv4 address, also one in IPv6's clothes, or a /64."""
    address = _plain(host)
    return ipaddress.ip_network((address, 32 if address.version == 4 else 64), strict=False)


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
