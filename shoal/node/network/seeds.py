"""Finding the network, and finding it again.

Seeds come from several sources, and status names the source of each:

    flag       `--seed` and `[network] seeds`; may have names and addresses that are not public
    manifest   the run's own list
    dns        what is behind a /dnsaddr/ seed of one of the other sources
    bucket     what validators left in the run's store; the node hands it over (`rendezvous`)
    cache      peers that answered in earlier runs, a file; only while nobody is connected

Each round all that are not connected are tried at once: a TCP probe of our own first, so that a
dead address costs seconds and says why, then libp2p, then the DHT. Rounds repeat for ever, with
growing pauses and jitter: two halves that started apart find each other, and a node without any
peer stays up. After a sleep of the machine the next round is at once, and asks those that seem
connected too.

Guarantees: never raises for want of peers; what happened to each seed can be read in `lines`. What
strangers name is dialled only where it is public, unless the run is a local one.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from shoal.node.network.addresses import Address, parse_seed
from shoal.node.network.dnsaddr import is_dnsaddr, resolve_dnsaddr
from shoal.node.network.good_peers import load_good_peers, save_good_peers, with_good_peer
from shoal.node.network.reaching import Seed, SeedSource, Ways, reach

MAX_SEEDS_PER_SOURCE: Final = 32
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0

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

    async def disconnect(self, libp2p_id: str) -> None:
        """Close the connections to a peer, or raise `OSError`."""
        ...


class SeedKeeper:
    """Keeps the host in touch with its seeds.

    Args:
        host: What dials.
        seeds: Texts of the sources that are known at start.
        file: Where good peers are kept.
        ways: How names and places are looked at.

    Attributes:
        lines: How each seed answered last, by source and text.
        trouble: One sentence if there are seeds and none of them answered; else empty.
    """

    def __init__(
        self, host: Host, seeds: dict[SeedSource, tuple[str, ...]], file: Path, ways: Ways
    ) -> None:
        self._host = host
        self._file = file
        self._ways = ways
        self._texts = dict(seeds)
        self._good = load_good_peers(file)
        self._again = asyncio.Event()
        self._doubts = False
        self.lines: dict[str, str] = {}
        self.trouble = ""

    def note_good(self, address: Address) -> None:
        """Remember a peer that answered, for the next start.

        Args:
            address: Where it answered, with its id.
        """
        good = with_good_peer(self._good, address.text)
        if good != self._good:
            self._good = good
            save_good_peers(self._file, good)

    def add(self, source: SeedSource, texts: tuple[str, ...]) -> None:
        """Replace what a source names, and try it at once.

        Args:
            source: Which.
            texts: Multiaddrs; the first `MAX_SEEDS_PER_SOURCE` count.
        """
        self._texts[source] = texts[:MAX_SEEDS_PER_SOURCE]
        self._again.set()

    def wake(self) -> None:
        """The machine slept: try everything at once, also what seems connected."""
        self._doubts = True
        self._again.set()

    async def run(self) -> None:
        """Try what is not connected, for ever."""
        pause_s = _FIRST_PAUSE_S
        while True:
            self._again.clear()
            all_there = await self.try_once()
            pause_s = _LONGEST_PAUSE_S / 2 if all_there else min(pause_s * 2, _LONGEST_PAUSE_S)
            try:
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1.5)):  # noqa: S311 - jitter
                    await self._again.wait()
                pause_s = _FIRST_PAUSE_S
            except TimeoutError:
                continue

    async def try_once(self) -> bool:
        """Try everything that is not connected, at once.

        Returns:
            Whether all seeds but those of the cache are connected now.
        """
        try:
            connected = set(await self._host.connected())
        except OSError as error:
            _log.warning("p2pd does not say who is connected: %s", error)
            return False
        lines: dict[str, str] = {}
        seeds = await self._find_seeds(lines)
        own = [one for one in seeds if one.source is not SeedSource.CACHE]
        wanted = own if connected else seeds
        doubts, self._doubts = self._doubts, False
        if doubts:
            connected -= await self._drop_dead({one.address.libp2p_id for one in own} & connected)
        self.lines |= lines
        there = await asyncio.gather(*(self._try_one(one, connected) for one in wanted))
        shown = lines.keys() | {one.text for one in wanted}
        self.lines = {text: line for text, line in self.lines.items() if text in shown}
        reached = [ok for one, ok in zip(wanted, there, strict=True) if one in own]
        # A name without an answer is a seed that did not answer; nonsense is none.
        reached += [False for text in lines if is_dnsaddr(text.split(" ", 1)[1])]
        lost = bool(reached) and not any(reached)
        self.trouble = f"none of {len(reached)} seeds answered, trying again" if lost else ""
        return all(reached)

    async def _find_seeds(self, lines: dict[str, str]) -> list[Seed]:
        """All seeds, each once; what cannot be used is said in `lines`."""
        texts = [(source, text) for source, many in self._texts.items() for text in many]
        texts += [(SeedSource.CACHE, text) for text in self._good]
        parts = await asyncio.gather(*(self._read(*one, lines) for one in texts))
        by_address: dict[Address, Seed] = {}
        for seed in (seed for part in parts for seed in part):
            by_address.setdefault(seed.address, seed)
        return list(by_address.values())

    async def _read(self, source: SeedSource, text: str, lines: dict[str, str]) -> Iterable[Seed]:
        try:
            if is_dnsaddr(text):
                found = await resolve_dnsaddr(text, self._ways.look_up)
                return [Seed(SeedSource.DNS, one) for one in found]
            address = parse_seed(text)
        except (OSError, ValueError) as error:
            lines[f"{source} {text}"] = str(error) or type(error).__name__
            return []
        return [Seed(source, address)]

    async def _drop_dead(self, libp2p_ids: set[str]) -> set[str]:
        """Which of the connections lead nowhere any more; they are closed."""
        wanted = sorted(libp2p_ids)
        alive = await asyncio.gather(*map(self._host.join, wanted), return_exceptions=True)
        dead = {one for one, answer in zip(wanted, alive, strict=True) if answer is not True}
        for libp2p_id in dead:
            try:
                await self._host.disconnect(libp2p_id)
            except OSError as error:
                _log.debug("closing the connection to %s: %s", libp2p_id, error)
        return dead

    async def _try_one(self, seed: Seed, connected: set[str]) -> bool:
        libp2p_id = seed.address.libp2p_id
        if libp2p_id == self._host.peer_id or libp2p_id in connected:
            own = libp2p_id == self._host.peer_id
            self.lines[seed.text] = "this node itself" if own else "connected"
            return True
        try:
            there = await reach(seed, self._ways)
            await self._host.dial(libp2p_id, there)
            joined = await self._host.join(libp2p_id)
        except OSError as error:
            self.lines[seed.text] = str(error) or type(error).__name__
            return False
        self.lines[seed.text] = "connected" if joined else "answers, but is no DHT node"
        if joined:
            self.note_good(seed.address)
        return joined
