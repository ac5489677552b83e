"""From a server's name to the addresses that may be connected to.

Guarantees: a name is resolved once and every one of its addresses must pass, so whoever connects to
those returned cannot be led elsewhere by a second answer. An address is its own answer.

Which addresses pass is said in `endpoints`, which of them are tried first in `address_order`.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Any

from shoal.storage.endpoints import check_address, check_hostname, is_address
from shoal.storage.errors import StorageUnavailableError

AddressInfo = tuple[Any, Any, int, str, tuple[Any, ...]]
GetAddrInfo = Callable[..., Sequence[AddressInfo]]


def resolve(
    host: str,
    port: int,
    *,
    allow_loopback: bool,
    allow_private: bool = False,
    getaddrinfo: GetAddrInfo = socket.getaddrinfo,
) -> tuple[str, ...]:
    """Resolve a name once and check every address.

    Args:
        host: The host's name, or an address where those are allowed.
        port: The port that will be connected to.
        allow_loopback: This machine's own addresses pass too.
        allow_private: Every address passes: one's own server only.
        getaddrinfo: The system's resolver.

    Returns:
        The addresses, which have all passed, at least one; connect to them and not to the name.

    Raises:
        RefusedError: E_HOST_NOT_ALLOWED for the name, E_ADDR_NOT_PUBLIC if any address fails.
        StorageUnavailableError: The name has no address now.
    """
    check_hostname(host, allow_address=allow_loopback or allow_private)
    addresses = addresses_of(host, port, getaddrinfo)
    if not allow_private:
        for address in addresses:
            check_address(address, allow_loopback=allow_loopback)
    return addresses


def addresses_of(host: str, port: int, getaddrinfo: GetAddrInfo) -> tuple[str, ...]:
    """Resolve a name once, without checking anything.

    Args:
        host: The name, or an address, which is its own answer.
        port: The port that will be connected to.
        getaddrinfo: The system's resolver.

    Returns:
        Its addresses, at least one, each once.

    Raises:
        StorageUnavailableError: The name has no address now.
    """
    if is_address(host):
        return (host,)
    try:
        answers = getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        # Of a label that is too long the resolver says so by a UnicodeError.
        raise StorageUnavailableError(f"host {host}: no address found ({error})", "") from error
    if not answers:
        raise StorageUnavailableError(f"host {host}: no address found", "")
    return tuple(dict.fromkeys(str(answer[4][0]) for answer in answers))
