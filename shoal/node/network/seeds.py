"""Finding the network, and finding it again.

Seeds come from the settings and from the peers that answered in earlier runs (a file). Each round
all that are not connected are tried at once: a TCP probe of our own first, so that a dead address
costs seconds and says why, then libp2p, then the DHT. Rounds repeat for ever, with growing pauses
and jitter: two halves that started apart find each other, and a node without any peer stays up.

Guarantees: never raises for want of peers; what happened to each seed can be read in `lines`.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

from shoal.node.network.addresses import Address, parse_address
from shoal.protocol import strict_json
from shoal.protocol.errors import RemoteProtocolError

PROBE_TIMEOUT_S: Final = 3.0
MAX_KEPT_PEERS: Final = 32
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0
_MAX_FILE_BYTES: Final = 64 * 1024

_log = logging.getLogger(__name__)


class Host(Protocol):
    """The part of `libp2p.Libp2p` that is used."""

    @property
    def peer_id(self) -> str:
        """The own libp2p id."""
        ...

    async def connected(self) -> tuple[str, ...]:
        """The libp2p ids of the peers with a connection."""
        ...

    async def dial(self, libp2p_id: str, addresses: tuple[Address, ...]) -> None:
        """Have a connection to a peer, or raise `OSError`."""
        ...

    async def join(self, libp2p_id: str) -> bool:
        """Get to know a connected peer's part of the DHT."""
        ...


async def probe_tcp(address: Address) -> None:
    """Open a TCP connection and close it; QUIC addresses are taken as they are.

    Args:
        address: Where.

    Raises:
        OSError: Nobody listens there, or not within `PROBE_TIMEOUT_S`.
    """
    if address.transport != "tcp":
        return
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        _, writer = await asyncio.open_connection(address.host, address.port)
    writer.close()


class SeedKeeper:
    """Keeps the host in touch with its seeds.

    Args:
        host: What dials.
        seeds: From the settings: multiaddrs with ids.
        file: Where good peers are kept.
        probe: Looks whether anybody listens.

    Attributes:
        lines: How each seed answered last, by its text.
        trouble: One sentence if there are seeds and none of them answered; else empty.
    """

    def __init__(
        self,
        host: Host,
        seeds: tuple[str, ...],
        file: Path,
        probe: Callable[[Address], Awaitable[None]] = probe_tcp,
    ) -> None:
        self._host = host
        self._file = file
        self._probe = probe
        self._good = _load(file)
        self.lines: dict[str, str] = {}
        self.trouble = ""
        self._seeds = tuple(self._read(seeds))

    def note_good(self, address: Address) -> None:
        """Remember a peer that answered, for the next start.

        Args:
            address: Where it answered, with its id.
        """
        texts = [address.text, *(text for text in self._good if text != address.text)]
        if texts[:1] != self._good[:1]:
            self._good = texts[:MAX_KEPT_PEERS]
            _save(self._file, self._good)

    async def run(self) -> None:
        """Try what is not connected, for ever."""
        pause_s = _FIRST_PAUSE_S
        while True:
            all_there = await self.try_once()
            pause_s = _LONGEST_PAUSE_S / 2 if all_there else min(pause_s * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    async def try_once(self) -> bool:
        """Try everything that is not connected, at once.

        Returns:
            Whether all seeds of the settings are connected now.
        """
        try:
            connected = set(await self._host.connected())
        except OSError as error:
            _log.warning("p2pd does not say who is connected: %s", error)
            return False
        kept = () if connected else tuple(self._read(tuple(self._good)))
        wanted = dict.fromkeys((*self._seeds, *kept))
        done = await asyncio.gather(*(self._try_one(one, connected) for one in wanted))
        own = done[: len(self._seeds)]
        lost = bool(own) and not any(own)
        self.trouble = f"none of {len(own)} seeds answered, trying again" if lost else ""
        return all(own)

    async def _try_one(self, seed: Address, connected: set[str]) -> bool:
        if seed.libp2p_id == self._host.peer_id:
            self.lines[seed.text] = "connected"
            return True
        if seed.libp2p_id in connected:
            self.lines[seed.text] = "connected"
            return True
        try:
            await self._probe(seed)
            await self._host.dial(seed.libp2p_id, (seed,))
            joined = await self._host.join(seed.libp2p_id)
        except OSError as error:
            self.lines[seed.text] = str(error) or type(error).__name__
            return False
        self.lines[seed.text] = "connected" if joined else "answers, but is no DHT node"
        if joined:
            self.note_good(seed)
        return joined

    def _read(self, texts: tuple[str, ...]) -> list[Address]:
        found = []
        for text in texts:
            try:
                address = parse_address(text)
            except ValueError as error:
                self.lines[text] = str(error)
                continue
            if address.libp2p_id:
                found.append(address)
            else:
                self.lines[text] = "the address does not end in /p2p/ and an id"
        return found


def _load(file: Path) -> list[str]:
    """Read the kept peers; a file that cannot be read is as good as none."""
    try:
        fields = strict_json.load(file.read_bytes(), _MAX_FILE_BYTES)
    except (OSError, RemoteProtocolError):
        return []
    texts = fields.get("peers")
    if not isinstance(texts, list):
        return []
    return [text for text in texts if isinstance(text, str)][:MAX_KEPT_PEERS]


def _save(file: Path, texts: list[str]) -> None:
    partial = file.with_suffix(".partial")
    try:
        partial.write_bytes(strict_json.dump({"peers": texts}))
        partial.replace(file)
    except OSError as error:
        _log.warning("%s cannot be written: %s", file, error)
