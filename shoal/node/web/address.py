"""Where the page listens, and under which names a browser may ask for it.

Guarantees: against DNS rebinding a page on loopback answers only to 127.0.0.1, localhost and [::1]
with its own port, whatever name a foreign page made to point here. Elsewhere it answers to numbers
(a name that was made to point here is never a number), to localhost and to names that the
configuration lists; there the port may be another one (a container's, a proxy's).

Does not do: open sockets.
"""

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass

_LISTEN = re.compile(r"(?P<host>[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})")
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host (name, IPv4 or bracketed IPv6) and a port; port 0 is any free one."""

    host: str
    port: int

    @property
    def bare_host(self) -> str:
        """The host as sockets want it: without brackets, and one address, so that port 0 is one."""
        return "127.0.0.1" if self.host == "localhost" else self.host.strip("[]")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        number = _number(self.host)
        return self.host == "localhost" if number is None else number.is_loopback

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress | None:
    """Reads `HOST:PORT`; None if it is none."""
    match = _LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        return None
    if match["host"].startswith("[") and _number(match["host"]) is None:
        return None
    return ListenAddress(match["host"], int(match["port"]))


def is_allowed_host(host_header: str, address: ListenAddress, names: Collection[str] = ()) -> bool:
    """Whether a request with this Host header is meant for us.

    Args:
        host_header: as it came; nobody is trusted.
        address: where we listen, with the real port.
        names: further names that the configuration allows.
    """
    asked = parse_listen(host_header if _has_port(host_header) else f"{host_header}:80")
    if asked is None:
        return False
    host = asked.host.lower()
    if host in names:
        return True
    if address.is_loopback:
        hosts = {*_LOOPBACK_HOSTS, address.host.lower()}
        return host in hosts and asked.port == address.port
    return host == "localhost" or _number(host) is not None


def _has_port(host_header: str) -> bool:
    return re.search(r":[0-9]+$", host_header) is not None and not host_header.endswith("]")


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
