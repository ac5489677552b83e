"""One seed: who named it, under which numbers it may be dialled, and whether anybody listens there.

Guarantees: what strangers name is dialled only where it is public, unless the run is a local one;
names become numbers here, so that nobody looks them up a second time and finds other ones.

Does not do: libp2p. Who listens is proved by the handshake that follows.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.node.network.addresses import Address
from shoal.node.network.dnsaddr import LookUp, dns_look_up, resolve_host

PROBE_TIMEOUT_S: Final = 3.0


class SeedSource(StrEnum):
    """Where a seed comes from, as status says it."""

    FLAG = "flag"
    MANIFEST = "manifest"
    DNS = "dns"
    BUCKET = "bucket"
    CACHE = "cache"


_TRUSTED: Final = frozenset((SeedSource.FLAG, SeedSource.CACHE))
"""Sources of this machine's own, which may name any address."""


async def probe_tcp(address: Address) -> None:
    """Open a TCP connection and close it; QUIC addresses are taken as they are.

    Args:
        address: Where; a number.

    Raises:
        OSError: Nobody listens there, or not within `PROBE_TIMEOUT_S`.
    """
    if address.transport != "tcp":
        return
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        _, writer = await asyncio.open_connection(address.host, address.port)
    writer.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ways:
    """How seeds are looked at."""

    look_up: LookUp
    """Asks the DNS for TXT records."""
    probe: Callable[[Address], Awaitable[None]] = probe_tcp
    """Looks whether anybody listens."""
    resolve: Callable[[Address], Awaitable[tuple[Address, ...]]] = resolve_host
    """Turns names into numbers."""
    allow_private: bool = False
    """Whether strangers may name addresses that are not public."""


def system_ways(*, allow_private: bool, dns_server: str = "") -> Ways:
    """Those of a real process."""
    return Ways(look_up=dns_look_up(dns_server), allow_private=allow_private)


@dataclass(frozen=True, slots=True)
class Seed:
    """An address and who named it."""

    source: SeedSource
    address: Address

    @property
    def text(self) -> str:
        """As status shows it."""
        return f"{self.source} {self.address.text}"


async def reach(seed: Seed, ways: Ways) -> tuple[Address, ...]:
    """Find out under which numbers a seed listens.

    Args:
        seed: Which.
        ways: How to look.

    Returns:
        At least one address that may be dialled and where somebody listens.

    Raises:
        OSError: There is none; says why.
    """
    found = await ways.resolve(seed.address)
    allowed = [
        one for one in found if ways.allow_private or seed.source in _TRUSTED or one.is_public
    ]
    if not allowed:
        raise OSError("E_ADDR_NOT_PUBLIC: not a public address")
    done = await asyncio.gather(*map(ways.probe, allowed), return_exceptions=True)
    there = tuple(one for one, error in zip(allowed, done, strict=True) if error is None)
    errors = [error for error in done if error is not None]
    if not there or any(not isinstance(error, OSError) for error in errors):
        raise next((one for one in errors if not isinstance(one, OSError)), errors[0])
    return there
