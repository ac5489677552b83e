"""The multiaddrs that this network dials, and no others.

    /ip4/<address>/tcp/<port>              and the same with /ip6/, /dns4/ and /dns6/
    /ip4/<address>/udp/<port>/quic-v1      the same
    .../p2p/<libp2p id>                    at the end, where it says who must answer there
    /p2p/<libp2p id>                       a peer that nobody can dial: only over a connection that
                                           is there, because the peer has opened it

Guarantees: what passes has no relay, no path, no second host in it, and its text is canonical.
Names are for a person's own settings; a peer's addresses must be numbers, and public ones unless
the run is a local one.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

MAX_ADDRESS_CHARS: Final = 256

_PATTERN: Final = re.compile(
    r"/(ip4|ip6|dns4|dns6)/([0-9A-Za-z.:-]{1,128})/(?:tcp/([0-9]{1,5})|udp/([0-9]{1,5})/quic-v1)"
    r"(?:/p2p/([1-9A-HJ-NP-Za-km-z]{32,64}))?"
)

_UNDIALLED: Final = re.compile(r"/p2p/([1-9A-HJ-NP-Za-km-z]{32,64})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """One place to dial."""

    family: str
    """ip4, ip6, dns4 or dns6."""
    host: str
    transport: str
    """tcp or udp; udp means QUIC."""
    port: int
    libp2p_id: str = ""
    """Empty where the address does not say."""

    @property
    def place(self) -> str:
        """The multiaddr without the id."""
        tail = "/quic-v1" if self.transport == "udp" else ""
        return f"/{self.family}/{self.host}/{self.transport}/{self.port}{tail}"

    @property
    def text(self) -> str:
        """The whole multiaddr."""
        return f"{self.place}/p2p/{self.libp2p_id}" if self.libp2p_id else self.place

    @property
    def is_name(self) -> bool:
        """Whether the host has to be resolved."""
        return self.family.startswith("dns")

    @property
    def is_public(self) -> bool:
        """Whether the host is a number that everybody on the internet can reach."""
        if self.is_name:
            return False
        host = ipaddress.ip_address(self.host)
        return host.is_global and not host.is_multicast


def parse_address(text: str) -> Address:
    """Read a multiaddr; nobody is trusted.

    Args:
        text: The multiaddr.

    Returns:
        The address.

    Raises:
        ValueError: It is none of the forms of this module.
    """
    match = _PATTERN.fullmatch(text) if len(text) <= MAX_ADDRESS_CHARS else None
    if match is None:
        raise ValueError(f"{text[:80]!a} is not an address that can be dialled")
    family, host, tcp_port, udp_port, libp2p_id = match.groups()
    if family in {"ip4", "ip6"}:
        number = ipaddress.ip_address(host)
        if number.version != int(family[-1]):
            raise ValueError(f"{host!a} is no {family} address")
        host = str(number)
    port = int(tcp_port or udp_port)
    if port >= 2**16:
        raise ValueError(f"port {port} is above 65535")
    transport = "tcp" if tcp_port else "udp"
    return Address(
        family=family, host=host, transport=transport, port=port, libp2p_id=libp2p_id or ""
    )


def parse_seed(text: str) -> Address:
    """As `parse_address`, for an address that must end in an id."""
    address = parse_address(text)
    if not address.libp2p_id:
        raise ValueError("the address does not end in /p2p/ and an id")
    return address


def best_place(texts: tuple[str, ...]) -> str:
    """The address of a host that most others can use: public, else a name, else the first one.

    Args:
        texts: Multiaddrs; unknown forms are left out.

    Returns:
        One of them; empty if there is none.
    """
    found: dict[int, str] = {}
    for text in texts:
        try:
            address = parse_address(text)
        except ValueError:
            continue
        found.setdefault(0 if address.is_public else 1 if address.is_name else 2, text)
    return found[min(found)] if found else ""


def undialled(libp2p_id: str) -> str:
    """How a peer is named that nobody can dial.

    Args:
        libp2p_id: Its id.
    """
    return f"/p2p/{libp2p_id}"


def to_reach(text: str, *, allow_private: bool) -> str:
    """What of a stranger's address may be used: all of it, or only who it is.

    Args:
        text: A multiaddr that ends in an id.
        allow_private: Whether addresses that are not public may be dialled.

    Returns:
        The address, canonical; only the id where the address is not a public one.

    Raises:
        ValueError: It is none.
    """
    if _UNDIALLED.fullmatch(text) is not None:
        return text
    address = parse_seed(text)
    return address.text if allow_private or address.is_public else undialled(address.libp2p_id)


def parse_peer(texts: tuple[str, ...], *, allow_private: bool) -> tuple[str, tuple[Address, ...]]:
    """Read the addresses of one peer; nobody is trusted.

    Args:
        texts: Multiaddrs that all end in the same libp2p id.
        allow_private: Whether addresses that are not public may be dialled.

    Returns:
        The libp2p id, and the addresses that may be dialled; none where one of the texts says that
        nobody can dial this peer.

    Raises:
        ValueError: One is malformed, they name no id or two, or none may be dialled.
    """
    undialled = [match[1] for match in map(_UNDIALLED.fullmatch, texts) if match is not None]
    found = tuple(parse_address(text) for text in texts if _UNDIALLED.fullmatch(text) is None)
    ids = {*undialled, *(one.libp2p_id for one in found)}
    if len(ids) != 1 or "" in ids:
        raise ValueError("the addresses of a peer end in one libp2p id")
    usable = tuple(one for one in found if allow_private or one.is_public)
    if not usable and not undialled:
        raise ValueError("E_ADDR_NOT_PUBLIC: no address of this peer is a public one")
    return ids.pop(), usable
