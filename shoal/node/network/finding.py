"""The network process's part in finding peers and being found: seeds, probes, dialling back.

Guarantees: what it serves to other peers is bounded (`dial_back`); every answer comes within the
time that was asked for; a sleep of the machine is noticed here, and seeds are tried again at once.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shoal.node.network import dial_back, finding_messages, messages, streams
from shoal.node.network.addresses import Address, parse_seed
from shoal.node.network.dial_back import DialBackServer, DialBackStatus, ports_of
from shoal.node.network.libp2p import Libp2p, dial_alone
from shoal.node.network.messages import Answer, Start
from shoal.node.network.reaching import Seed, SeedSource, reach, system_ways
from shoal.node.network.seeds import SeedKeeper
from shoal.node.network.streams import Limits, Pace
from shoal.node.network.waking import watch_for_gaps
from shoal.storage.errors import ObjectNotFoundError, StorageError

GOOD_PEERS_NAME: Final = "good-peers.json"
MAX_ASKED: Final = 4
_STEP_S: Final = 20.0

_log = logging.getLogger(__name__)


@dataclass
class _Steps:
    """How far a probe has come."""

    took_ms: dict[str, int] = field(default_factory=dict)
    now: str = ""

    async def do(self, name: str, work: Callable[[], Awaitable[object]]) -> object:
        self.now, begun_s = name, time.monotonic()
        found = await work()
        self.took_ms[name] = int((time.monotonic() - begun_s) * 1000)
        return found


class Finding:
    """One host's seeds, and what it does for peers that want to know how they are reached.

    Args:
        host: The running host.
        options: Of the process.
    """

    def __init__(self, host: Libp2p, options: Start) -> None:
        self._host = host
        self._options = options
        self._ways = system_ways(allow_private=options.allow_private, dns_server=options.dns_server)
        seeds = {SeedSource.FLAG: options.seeds, SeedSource.MANIFEST: options.run_seeds}
        file = Path(options.folder) / GOOD_PEERS_NAME
        self._keeper = SeedKeeper(host, seeds, file, self._ways)
        self._server = DialBackServer(
            observed=host.observed, dial=dial_alone, allow_private=options.allow_private
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """How each seed answered last: source, address, colon, what happened."""
        return tuple(f"{text}: {line}" for text, line in self._keeper.lines.items())

    @property
    def trouble(self) -> str:
        """One sentence if no seed answered; else empty."""
        return self._keeper.trouble

    def note_good(self, address: Address) -> None:
        """Remember a peer that answered, for the next start."""
        self._keeper.note_good(address)

    async def serve(self) -> None:
        """Begin to dial those who ask."""
        await self._host.serve_streams(dial_back.PROTOCOL_NAME, self._serve_stream)

    async def run(self) -> None:
        """Keep in touch with the seeds, for ever."""
        await asyncio.gather(self._keeper.run(), watch_for_gaps(time.time, self._wake))

    async def do(
        self,
        request: finding_messages.AddSeeds | finding_messages.ProbeSeed | finding_messages.AskReach,
    ) -> Answer:
        """Do what the node asks for.

        Args:
            request: One of the three that are about finding.

        Returns:
            Its answer.

        Raises:
            ValueError: The request makes no sense.
            OSError: p2pd does not answer.
        """
        match request:
            case finding_messages.AddSeeds():
                self._keeper.add(SeedSource(request.source), request.addresses)
                return messages.Done()
            case finding_messages.ProbeSeed():
                return await self._probe(request)
            case finding_messages.AskReach():
                async with asyncio.timeout(request.timeout_ms / 1000):
                    return await self._ask_reach()

    def _wake(self) -> None:
        _log.warning("this machine slept or its clock was set: trying all seeds again")
        self._keeper.wake()

    async def _probe(self, request: finding_messages.ProbeSeed) -> finding_messages.Probed:
        seed = Seed(SeedSource(request.source), parse_seed(request.address))
        was_connected = seed.address.libp2p_id in await self._host.connected()
        steps = _Steps()
        detail = ""
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                await self._walk(seed, steps)
        except (OSError, StorageError) as error:
            detail = str(error) or f"no answer within {request.timeout_ms / 1000:.0f} s"
        return finding_messages.Probed(
            took_ms=steps.took_ms,
            failed_step=steps.now if detail else "",
            detail=detail,
            was_connected=was_connected,
        )

    async def _walk(self, seed: Seed, steps: _Steps) -> None:
        libp2p_id = seed.address.libp2p_id
        if libp2p_id == self._host.peer_id:
            return
        there: tuple[Address, ...] = ()

        async def tcp() -> None:
            nonlocal there
            there = await reach(seed, self._ways)

        async def dht() -> None:
            if not await self._host.join(libp2p_id):
                raise OSError("it answers, but not as a DHT node")

        await steps.do("tcp", tcp)
        await steps.do("handshake", lambda: self._host.dial(libp2p_id, there))
        await steps.do("dht", dht)
        await steps.do("run", lambda: self._ask_run(libp2p_id))

    async def _ask_run(self, libp2p_id: str) -> None:
        """Ask for the manifest's size: a peer of another run refuses."""
        run_id = self._options.run_id
        reader, writer = await self._host.open_stream(libp2p_id, streams.PROTOCOL_NAME)
        pace = Pace(Limits(timeout_s=_STEP_S, min_bytes_per_s=0.0), time.monotonic)
        try:
            await streams.ask_size(reader, writer, run_id, run_id, pace)
        except ObjectNotFoundError:
            _log.debug("%s is of this run and does not serve its manifest", libp2p_id)
        finally:
            writer.close()

    async def _ask_reach(self) -> finding_messages.Reach:
        ports = () if self._options.client_mode else ports_of(await self._host.addresses())
        shown = tuple(port.text for port in ports)
        if not ports:
            return finding_messages.Reach(status="unasked")
        answers: list[str] = []
        status, observed = "nobody", ""
        for peer in (await self._host.connected())[:MAX_ASKED]:
            try:
                said, seen = await self._ask_peer(peer, ports)
            except (OSError, StorageError) as error:
                answers.append(f"{peer}: {error}")
                continue
            answers.append(f"{peer}: {said.name.lower().replace('_', '-')}")
            observed = observed or seen
            if said is DialBackStatus.REACHED:
                status = "reached"
                break
            if said is DialBackStatus.NOT_REACHED:
                status = "not-reached"
        return finding_messages.Reach(
            status=status, observed=observed, ports=shown, answers=tuple(answers)
        )

    async def _ask_peer(
        self, peer: str, ports: tuple[dial_back.Port, ...]
    ) -> tuple[DialBackStatus, str]:
        reader, writer = await self._host.open_stream(peer, dial_back.PROTOCOL_NAME)
        pace = Pace(dial_back.ASK_LIMITS, time.monotonic)
        try:
            return await dial_back.ask(reader, writer, ports, pace)
        finally:
            writer.close()

    async def _serve_stream(
        self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await self._server.answer(peer, reader, writer)
        except (StorageError, OSError) as error:
            _log.debug("dialling %s back: %s", peer, error)
