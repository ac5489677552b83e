"""Addresses behind names, looked up only where a seed has a name.

    /dnsaddr/<name>[/p2p/<id>]   TXT records of _dnsaddr.<name>, each `dnsaddr=<multiaddr>`
    /dns4/, /dns6/               the system's own way, A or AAAA

Guarantees: an answer gives at most `MAX_FOUND` addresses, each with an id (and with that one, where
the seed says one), after at most `MAX_LOOKUPS` questions and `MAX_DEPTH` names that lead to names;
failures are `OSError`, and everything else in an answer is left out.

Does not do: believe an answer. Whether an address may be dialled is decided by the caller, and who
answers there is proved by libp2p. dnspython enters here and nowhere else.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.rdtypes.ANY.TXT

from shoal.node.network.addresses import MAX_ADDRESS_CHARS, Address, parse_address
from shoal.protocol.seed_addresses import ID_PATTERN, NAME_PATTERN

MAX_FOUND: Final = 16
MAX_LOOKUPS: Final = 8
MAX_DEPTH: Final = 2
MAX_TEXTS: Final = 64
MAX_NUMBERS: Final = 4
TIMEOUT_S: Final = 5.0

_PREFIX: Final = "dnsaddr="
_DNSADDR: Final = re.compile(rf"/dnsaddr/({NAME_PATTERN})(?:/p2p/({ID_PATTERN}))?")
_FAMILIES: Final = {"dns4": ("ip4", socket.AF_INET), "dns6": ("ip6", socket.AF_INET6)}

LookUp = Callable[[str], Awaitable[list[str]]]
"""A name -> the texts of its TXT records; raises `OSError`."""


def is_dnsaddr(text: str) -> bool:
    """Whether a seed is a name with addresses behind it."""
    return len(text) <= MAX_ADDRESS_CHARS and _DNSADDR.fullmatch(text) is not None


def dns_look_up(server: str = "") -> LookUp:
    """Make what asks for TXT records.

    Args:
        server: `address:port` of a DNS server; empty: those of the system.

    Returns:
        It; one question takes at most `TIMEOUT_S`.
    """

    async def look_up(name: str) -> list[str]:
        try:
            resolver = dns.asyncresolver.Resolver(configure=not server)
            if server:
                host, _, port = server.rpartition(":")
                resolver.nameservers, resolver.port = [host.strip("[]")], int(port)
            # The final dot: no search list of this machine is tried.
            answer = await resolver.resolve(f"{name}.", dns.rdatatype.TXT, lifetime=TIMEOUT_S)
        except (dns.exception.DNSException, ValueError) as error:
            raise OSError(f"{name} has no TXT records that can be read: {error}") from error
        records = [one for one in answer if isinstance(one, dns.rdtypes.ANY.TXT.TXT)]
        return [b"".join(one.strings).decode("ascii", "replace") for one in records[:MAX_TEXTS]]

    return look_up


async def resolve_dnsaddr(seed: str, look_up: LookUp) -> tuple[Address, ...]:
    """Find the addresses behind a name.

    Args:
        seed: `/dnsaddr/...`.
        look_up: Asks for TXT records.

    Returns:
        At least one address; all have ids.

    Raises:
        OSError: The first question failed, or no answer has an address.
        ValueError: It is no such seed.
    """
    found: dict[Address, None] = {}
    asked: set[str] = set()
    wanted = [seed]
    for depth in range(MAX_DEPTH + 1):
        deeper: list[str] = []
        for text in wanted:
            name, libp2p_id = _parse(text)
            if name in asked or len(asked) == MAX_LOOKUPS or len(found) >= MAX_FOUND:
                continue
            asked.add(name)
            addresses, names = read_answer(await _texts(name, look_up, first=not depth), libp2p_id)
            found |= dict.fromkeys(addresses)
            deeper += names
        wanted = deeper
    if not found:
        raise OSError("no TXT record behind the name has the address of a peer")
    return tuple(found)[:MAX_FOUND]


def read_answer(texts: list[str], libp2p_id: str) -> tuple[list[Address], list[str]]:
    """Read the TXT records of one name; nobody is trusted.

    Args:
        texts: What they say.
        libp2p_id: Only addresses of this peer; empty: of any.

    Returns:
        Addresses with ids, and further `/dnsaddr/` seeds.
    """
    addresses, names = [], []
    for text in texts[:MAX_TEXTS]:
        place = text.removeprefix(_PREFIX)
        if place == text:
            continue
        if is_dnsaddr(place):
            name, its_id = _parse(place)
            wanted_id = its_id or libp2p_id
            if libp2p_id in {"", wanted_id}:
                names.append(f"/dnsaddr/{name}" + (f"/p2p/{wanted_id}" if wanted_id else ""))
            continue
        try:
            address = parse_address(place)
        except ValueError:
            continue
        if address.libp2p_id and libp2p_id in {"", address.libp2p_id}:
            addresses.append(address)
    return addresses[:MAX_FOUND], names[:MAX_LOOKUPS]


async def resolve_host(address: Address) -> tuple[Address, ...]:
    """Turn the name in an address into numbers.

    Args:
        address: Of any family.

    Returns:
        The same with numbers; itself where it has one.

    Raises:
        OSError: Nobody knows the name, or not within `TIMEOUT_S`.
    """
    if not address.is_name:
        return (address,)
    family, number = _FAMILIES[address.family]
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(TIMEOUT_S):
        rows = await loop.getaddrinfo(
            address.host, address.port, family=number, type=socket.SOCK_STREAM
        )
    hosts = list(dict.fromkeys(str(row[4][0]) for row in rows))[:MAX_NUMBERS]
    tail = address.text.removeprefix(f"/{address.family}/{address.host}")
    return tuple(parse_address(f"/{family}/{host}{tail}") for host in hosts)


async def _texts(name: str, look_up: LookUp, *, first: bool) -> list[str]:
    try:
        return await look_up(f"_dnsaddr.{name}")
    except OSError:
        if first:
            raise
        return []


def _parse(seed: str) -> tuple[str, str]:
    match = _DNSADDR.fullmatch(seed)
    if match is None:
        raise ValueError(f"{seed[:80]!a} is no /dnsaddr/ address")
    return match[1], match[2] or ""
