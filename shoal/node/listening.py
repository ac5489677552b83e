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

logger = logging.getLogger(__name__)

IDLE_S: Final = 30.0
MAX_CONNECTIONS: Final = 512
MAX_OF_ONE_NETWORK: Final = 128
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
            doors = [asyncio.create_task(_let_in(found, runner)) for found in sockets]
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


async def _let_in(door: socket.socket, runner: web.AppRunner) -> None:
    loop = asyncio.get_running_loop()
    server = runner.server
    while server is not None:
        try:
            sock, address = await loop.sock_accept(door)
        except OSError as error:
            logger.warning("no new connection for now: %s", error)
            await asyncio.sleep(_BREATH_S)
            continue
        if not has_room([_host_of(found) for found in server.connections], address[0]):
            sock.close()
            continue
        try:
            await loop.connect_accepted_socket(server, sock)
        except OSError:
            sock.close()  # gone already


def has_room(open_hosts: Collection[str], host: str) -> bool:
    """Whether one more connection may come.

    Args:
        open_hosts: the peers' addresses of the connections that are open.
        host: where the new one comes from.
    """
    if len(open_hosts) >= MAX_CONNECTIONS:
        return False
    if _plain(host).is_loopback:
        return True
    network = network_of(host)
    return sum(network_of(found) == network for found in open_hosts) < MAX_OF_ONE_NETWORK


def _host_of(connection: web.RequestHandler) -> str:
    transport = connection.transport
    found = transport.get_extra_info("peername") if transport else None
    # One that is just closing has none and still counts.
    return str(found[0]) if found else "::"


def network_of(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
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
