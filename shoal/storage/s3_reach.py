"""How a connection to an S3 server comes about: addresses, the proxy, which way to try first.

Guarantees: the name is resolved for every new connection, all its addresses are checked, and the
connection goes to one that was checked. A server with several addresses is reached as long as one
of them answers: see `dialling`; the way that worked is tried first next time, so that a broken one
is paid for once. The proxy's own addresses are tried in the same manner. The proxy is told checked
addresses, one after the other, and a name only for one's own server. All within the limit given.
"""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from shoal.storage.address_order import AddressOrder
from shoal.storage.dialling import Dial, Race
from shoal.storage.errors import StorageUnavailableError
from shoal.storage.proxy import open_tunnel, proxy_address
from shoal.storage.resolving import GetAddrInfo, addresses_of, resolve
from shoal.storage.s3_config import S3Config

_MAX_TUNNELS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Connected:
    """A connection that has just been made.

    Attributes:
        sock: It.
        settle: To be told whether TLS could be begun on it as well.
    """

    sock: socket.socket
    settle: Callable[[bool], None]


class Reach:
    """The ways to one server.

    Args:
        config: Which addresses are allowed, and which proxy stands before them.
        connect_timeout_s: The most that a connection takes where its maker sets no limit.
        getaddrinfo: The system's resolver.
        dial: Begins to connect to an address.
    """

    def __init__(
        self, config: S3Config, connect_timeout_s: float, getaddrinfo: GetAddrInfo, dial: Dial
    ) -> None:
        self._config = config
        self._connect_timeout_s = connect_timeout_s
        self._getaddrinfo = getaddrinfo
        self._dial = dial
        self._to_server = AddressOrder()
        self._to_proxy = AddressOrder()

    def connect(self, host: str, port: int, timeout_s: float | None) -> Connected:
        """Connect to the server. Blocks.

        Args:
            host: Its name.
            port: Its port.
            timeout_s: The most that it takes, and that the socket waits afterwards; None: the usual
                limit, and the socket waits without one.

        Returns:
            The connection.

        Raises:
            RefusedError: The name or an address of it is not allowed.
            StorageUnavailableError: The name has no address, or the proxy makes no tunnel.
            OSError: No address can be connected to.
        """
        ends_at_s = time.monotonic() + (self._connect_timeout_s if timeout_s is None else timeout_s)
        addresses = self._to_server.ordered(self._targets(host, port))
        if self._config.proxy:
            address, sock = self._tunnel(addresses, port, ends_at_s)
        else:
            address, sock = self._raced(self._to_server, addresses, port, ends_at_s)
        sock.settimeout(timeout_s)
        return Connected(sock=sock, settle=partial(self._settle, address))

    def _targets(self, host: str, port: int) -> tuple[str, ...]:
        config = self._config
        if config.proxy and config.allow_private:
            # Behind a mandatory proxy names may be known to nobody but the proxy.
            return (host,)
        return resolve(
            host,
            port,
            allow_loopback=config.allow_loopback,
            allow_private=config.allow_private,
            getaddrinfo=self._getaddrinfo,
        )

    def _raced(
        self, order: AddressOrder, addresses: Sequence[str], port: int, ends_at_s: float
    ) -> tuple[str, socket.socket]:
        race = Race(dial=self._dial)
        try:
            address, sock = race.run(addresses, port, ends_at_s)
        finally:
            for failed in race.errors:
                order.failed(failed)
        # The family that answered is known to work before TLS is.
        order.worked(address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return address, sock

    def _settle(self, address: str, is_good: bool) -> None:
        (self._to_server.worked if is_good else self._to_server.failed)(address)

    def _tunnel(
        self, hosts: Sequence[str], port: int, ends_at_s: float
    ) -> tuple[str, socket.socket]:
        """Ask the proxy for the addresses, each in half of the time left, the last one in all."""
        failures: list[StorageUnavailableError] = []
        tried = hosts[:_MAX_TUNNELS]
        for host in tried:
            left_s = ends_at_s - time.monotonic()
            share_s = left_s if host == tried[-1] else left_s / 2
            sock = self._to_the_proxy(ends_at_s)
            try:
                return host, self._opened(sock, host, port, time.monotonic() + share_s)
            except StorageUnavailableError as error:
                self._to_server.failed(host)
                failures.append(error)
        raise failures[0]

    def _to_the_proxy(self, ends_at_s: float) -> socket.socket:
        host, port = proxy_address(self._config.proxy)
        # Whoever configured the proxy may have it anywhere: not checked.
        addresses = self._to_proxy.ordered(addresses_of(host, port, self._getaddrinfo))
        try:
            return self._raced(self._to_proxy, addresses, port, ends_at_s)[1]
        except OSError as error:
            raise self._unreachable(error) from error

    def _opened(self, sock: socket.socket, host: str, port: int, ends_at_s: float) -> socket.socket:
        with ExitStack() as held:
            held.enter_context(sock)
            try:
                open_tunnel(sock, host, port, ends_at_s)
            except OSError as error:
                raise self._unreachable(error) from error
            held.pop_all()
        return sock

    def _unreachable(self, error: OSError) -> StorageUnavailableError:
        what = f"the proxy {self._config.proxy} cannot be reached ({error})"
        return StorageUnavailableError(what, "")
