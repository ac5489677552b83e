"""Can others reach me? A peer is asked to dial back.

Layout on a stream of `PROTOCOL_NAME`, little-endian:

    request   magic b"SHOALDIA" (8) | version u16 = 1 | count u16, 1 to 4 |
              4 times: transport u16 (0 none, 1 tcp, 2 quic), port u16
    answer    magic b"SHOALDBK" (8) | status u16 | length u16 | the address that the peer was seen
              at, as /ip4/... or /ip6/..., padded with zeros to 64 bytes

The request names ports and nothing else. What is dialled is the peer itself: its verified libp2p
id, at the address that its own connection comes from, by a host that has no connection to it yet.
So nobody can have anybody else dialled, and a port that answers must prove the asker's own key.

Guarantees: one dial at a time, `MIN_PAUSE_S` between two, one per peer in `PEER_PAUSE_S`, bounded
memory, a fixed number of bytes read; addresses that are not public are dialled in local runs only.
"""

import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from shoal.node.network.addresses import Address, parse_address
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.streams import Limits, Pace, Reader, Writer, read_exactly

PROTOCOL_NAME: Final = "/shoal/dial-back/1"
MAX_PORTS: Final = 4
MIN_PAUSE_S: Final = 2.0
PEER_PAUSE_S: Final = 20.0
MAX_KNOWN_PEERS: Final = 1024
MAX_OPEN: Final = 32
"""Streams at one time; also those that ask for nothing have a socket each."""
MAX_OPEN_PER_PEER: Final = 2

_REQUEST: Final = struct.Struct("<8sHH" + "HH" * MAX_PORTS)
_ANSWER: Final = struct.Struct("<8sHH64s")
_REQUEST_MAGIC: Final = b"SHOALDIA"
_ANSWER_MAGIC: Final = b"SHOALDBK"
_VERSION: Final = 1
_TRANSPORTS: Final = {1: "tcp", 2: "udp"}
REQUEST_BYTES: Final = _REQUEST.size
ANSWER_BYTES: Final = _ANSWER.size
_REQUEST_LIMITS: Final = Limits(timeout_s=10.0, min_bytes_per_s=0.0)
ASK_LIMITS: Final = Limits(timeout_s=60.0, min_bytes_per_s=0.0, window_s=60.0)
"""For who asks: the other side starts a host and waits for its dial."""


class DialBackStatus(IntEnum):
    """How a request was answered; closed."""

    REACHED = 0
    NOT_REACHED = 1
    BUSY = 2
    BAD_REQUEST = 3
    NOT_ALLOWED = 4
    """The asker is seen at an address that may not be dialled, or through a relay."""


@dataclass(frozen=True, slots=True)
class Port:
    """Where the asker listens."""

    transport: str
    """tcp or udp."""
    number: int

    @property
    def text(self) -> str:
        """As a person reads it."""
        return f"{'tcp' if self.transport == 'tcp' else 'quic'}/{self.number}"


def ports_of(addresses: tuple[str, ...]) -> tuple[Port, ...]:
    """The ports that a host listens on, from its addresses; unknown forms are left out."""
    found: dict[Port, None] = {}
    for text in addresses:
        try:
            address = parse_address(text)
        except ValueError:
            continue
        if address.port:
            found[Port(address.transport, address.port)] = None
    return tuple(found)[:MAX_PORTS]


def pack_request(ports: tuple[Port, ...]) -> bytes:
    """Write a request for 1 to `MAX_PORTS` ports."""
    codes = {name: code for code, name in _TRANSPORTS.items()}
    pairs = [(codes[port.transport], port.number) for port in ports]
    pairs += [(0, 0)] * (MAX_PORTS - len(pairs))
    flat = (number for pair in pairs for number in pair)
    return _REQUEST.pack(_REQUEST_MAGIC, _VERSION, len(ports), *flat)


def parse_request(raw: bytes) -> tuple[Port, ...] | None:
    """Read a request; nobody is trusted.

    Args:
        raw: `REQUEST_BYTES` bytes.

    Returns:
        Its ports; None if it is none.
    """
    magic, version, count, *flat = _REQUEST.unpack(raw)
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    used, unused = pairs[:count], pairs[count:]
    if (magic, version) != (_REQUEST_MAGIC, _VERSION) or not 1 <= count <= MAX_PORTS:
        return None
    if any(pair != (0, 0) for pair in unused) or len(set(used)) != count:
        return None
    if any(code not in _TRANSPORTS or not number for code, number in used):
        return None
    return tuple(Port(_TRANSPORTS[code], number) for code, number in used)


def pack_answer(status: DialBackStatus, observed: str = "") -> bytes:
    """Write an answer; `observed` is a multiaddr of at most 64 characters."""
    text = observed.encode("ascii")
    return _ANSWER.pack(_ANSWER_MAGIC, status, len(text), text)


async def ask(
    reader: Reader, writer: Writer, ports: tuple[Port, ...], pace: Pace
) -> tuple[DialBackStatus, str]:
    """Ask the peer at the other end of a stream to dial back.

    Args:
        reader: The stream's one half.
        writer: The other.
        ports: Where this peer listens, at least one.
        pace: Deadline.

    Returns:
        Its answer, and where it sees this peer; both claims.

    Raises:
        PeerUnavailableError: Gone, too slow, or no answer of this protocol.
    """
    writer.write(pack_request(ports))
    await pace.wait(writer.drain)
    magic, status, length, raw = _ANSWER.unpack(await read_exactly(reader, ANSWER_BYTES, pace))
    text = raw[:length].decode("ascii", "replace")
    known = {one.value for one in DialBackStatus}
    if magic != _ANSWER_MAGIC or status not in known or raw[length:].strip(b"\0"):
        raise PeerUnavailableError("the peer's answer is none of this protocol", "")
    try:
        observed = parse_address(f"{text}/tcp/1").place.removesuffix("/tcp/1") if text else ""
    except ValueError as error:
        raise PeerUnavailableError("the peer's answer names no address", "") from error
    return DialBackStatus(status), observed


class DialBackServer:
    """Dials those who ask.

    Args:
        observed: The addresses that a peer's connections come from.
        dial: Dials a peer from a host that has no connection to it.
        allow_private: Whether addresses that are not public may be dialled.
        now_s: A monotonic clock.
    """

    def __init__(
        self,
        *,
        observed: Callable[[str], Awaitable[tuple[str, ...]]],
        dial: Callable[[str, tuple[Address, ...]], Awaitable[None]],
        allow_private: bool,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observed = observed
        self._dial = dial
        self._allow_private = allow_private
        self._now_s = now_s
        self._busy = False
        self._open: list[str] = []
        self._free_at_s = 0.0
        self._peer_free_at_s: OrderedDict[str, float] = OrderedDict()

    async def answer(self, peer: str, reader: Reader, writer: Writer) -> None:
        """Serve one stream to its end; the caller closes it.

        Args:
            peer: The libp2p id of the peer at the other end, which libp2p has verified.
            reader: The stream's one half.
            writer: The other.

        Raises:
            PeerUnavailableError: The peer went away or is too slow.
            OSError: p2pd does not answer.
        """
        if len(self._open) >= MAX_OPEN or self._open.count(peer) >= MAX_OPEN_PER_PEER:
            return
        self._open.append(peer)
        try:
            await self._answer(peer, reader, writer)
        finally:
            self._open.remove(peer)

    async def _answer(self, peer: str, reader: Reader, writer: Writer) -> None:
        pace = Pace(_REQUEST_LIMITS, self._now_s)
        ports = parse_request(await read_exactly(reader, REQUEST_BYTES, pace))
        status, observed = DialBackStatus.BAD_REQUEST, ""
        if ports is not None:
            status, observed = await self._judge(peer, ports)
        writer.write(pack_answer(status, observed))
        await Pace(_REQUEST_LIMITS, self._now_s).wait(writer.drain)

    async def _judge(self, peer: str, ports: tuple[Port, ...]) -> tuple[DialBackStatus, str]:
        hosts = [one for text in await self._observed(peer) if (one := _host_of(text)) is not None]
        if not hosts:
            return DialBackStatus.NOT_ALLOWED, ""
        host = hosts[0]
        seen = f"/{host.family}/{host.host}"
        if not (self._allow_private or host.is_public):
            return DialBackStatus.NOT_ALLOWED, seen
        if not self._take_turn(peer):
            return DialBackStatus.BUSY, seen
        addresses = tuple(
            Address(family=host.family, host=host.host, transport=one.transport, port=one.number)
            for one in ports
        )
        try:
            await self._dial(peer, addresses)
        except OSError:
            return DialBackStatus.NOT_REACHED, seen
        finally:
            self._busy = False
            self._free_at_s = self._now_s() + MIN_PAUSE_S
        return DialBackStatus.REACHED, seen

    def _take_turn(self, peer: str) -> bool:
        now_s = self._now_s()
        if self._busy or now_s < max(self._free_at_s, self._peer_free_at_s.get(peer, 0.0)):
            return False
        self._busy = True
        self._peer_free_at_s[peer] = now_s + PEER_PAUSE_S
        self._peer_free_at_s.move_to_end(peer)
        if len(self._peer_free_at_s) > MAX_KNOWN_PEERS:
            self._peer_free_at_s.popitem(last=False)
        return True


def _host_of(text: str) -> Address | None:
    """The number that a connection comes from; None for what goes through a relay."""
    try:
        address = parse_address(text)
    except ValueError:
        return None
    return None if address.is_name else address
