"""The one door to hivemind: a libp2p host with a DHT, on the running asyncio loop.

Used are `P2P` and `DHTNode` and nothing else of it. What they get wrong for us is set right here:

* seeds are never handed to p2pd, which dials them one after the other before it says that it runs;
  they are dialled by `join`, any number of times;
* a record that is refused for its shorter life no longer shortens the life of the stored one;
* values that are dictionaries are refused, also empty ones, which no validator is asked about;
* nothing is cached, so that an old record is not handed on for a new one;
* the sockets of p2pd lie in a folder of ours instead of the world's temporary one.

Guarantees: every call ends, at the latest with the caller's time limit; failures are `OSError`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from shoal.node.network.addresses import Address
from shoal.node.network.dht_records import unwrap_value
from shoal.node.network.messages import Start

START_TIMEOUT_S: Final = 60.0
DIAL_TIMEOUT_S: Final = 15.0
PING_TIMEOUT_S: Final = 10.0
_RPC_TIMEOUT_S: Final = 5.0
_NUM_REPLICAS: Final = 5

RecordCheck = Callable[[bytes, bytes, float], bool]
"""Location, value, expiry -> whether the DHT may have it."""
StreamHandler = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Called with the libp2p id of the peer that opened the stream."""


class _Storage(DHTLocalStorage):  # type: ignore[misc] # hivemind has no types
    """Keeps the life of a stored value when a shorter one is refused."""

    def store(
        self, key: DHTID, value: bytes, expiration_time: float, subkey: object = None
    ) -> bool:
        known = self.get(key)
        if subkey is not None or (known is not None and known.expiration_time >= expiration_time):
            return False
        return bool(super().store(key, value, expiration_time))


class _Validator(RecordValidatorBase):  # type: ignore[misc] # hivemind has no types
    def __init__(self, check: RecordCheck) -> None:
        self._check = check

    def validate(self, record: DHTRecord) -> bool:
        value = unwrap_value(record.value)
        if record.subkey != DHTProtocol.IS_REGULAR_VALUE or value is None:
            return False
        return self._check(record.key, value, record.expiration_time)

    @property
    def priority(self) -> int:
        return 10


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A value of the DHT; it has passed the check."""

    value: bytes
    expires_at_s: float


class Libp2p:
    """A running host; made by `start`."""

    # Any: hivemind has no types; nothing of it leaves this class.
    def __init__(self, p2p: Any, node: Any) -> None:  # noqa: ANN401
        self._p2p = p2p
        self._node = node
        self.peer_id = str(p2p.peer_id)
        self.p2pd_process_id = int(p2p._child.pid)  # noqa: SLF001 - there is no other way to it

    @classmethod
    async def start(cls, options: Start, sockets: Path, check: RecordCheck) -> "Libp2p":
        """Start p2pd and a DHT node that knows nobody yet.

        Args:
            options: What to be.
            sockets: A folder of ours for p2pd's sockets.
            check: Decides which records the DHT may have.

        Returns:
            The host.

        Raises:
            OSError: p2pd does not start.
        """
        use_hivemind_log_handler("nowhere")
        P2P._UNIX_SOCKET_PREFIX = f"/unix{sockets}/"  # noqa: SLF001 - there is no option for it
        try:
            p2p = await P2P.create(
                host_maddrs=None if options.client_mode else list(options.listen),
                announce_maddrs=list(options.announce) or None,
                no_listen=options.client_mode,
                identity_path=str(_identity_file(Path(options.folder))),
                check_if_identity_free=False,
                startup_timeout=START_TIMEOUT_S,
                dht_mode="client" if options.client_mode else "server",
                auto_nat=options.use_relay,
                use_relay=options.use_relay,
                use_auto_relay=options.use_relay and options.client_mode,
                nat_port_map=options.map_port,
            )
        except (P2PDaemonError, ControlFailure, ValueError) as error:
            raise OSError(f"p2pd did not start: {error}") from error
        node = await DHTNode.create(
            p2p=p2p,
            num_replicas=_NUM_REPLICAS,
            wait_timeout=_RPC_TIMEOUT_S,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            reuse_get_requests=False,
            client_mode=options.client_mode,
            record_validator=_Validator(check),
        )
        node.protocol.storage = _Storage()
        node.protocol.cache = _Storage()
        node.protocol._validate_dictionary = _refuse_dictionary  # noqa: SLF001 - no other way
        return cls(p2p, node)

    async def addresses(self) -> tuple[str, ...]:
        """Under which others may reach this host, without the id; also whether p2pd lives.

        Raises:
            OSError: p2pd does not answer.
        """
        async with asyncio.timeout(PING_TIMEOUT_S):
            # Not `get_visible_maddrs`: it takes a host that listens nowhere for a fault.
            _, found = await self._p2p._client.identify()  # noqa: SLF001
        return tuple(str(one).split("/p2p/", maxsplit=1)[0] for one in found)

    async def p2pd_ended(self) -> int:
        """Wait until p2pd ends.

        Returns:
            Its exit status.
        """
        return int(await self._p2p._child.wait())  # noqa: SLF001 - there is no other way to it

    async def connected(self) -> tuple[str, ...]:
        """The libp2p ids of the peers with a connection."""
        async with asyncio.timeout(PING_TIMEOUT_S):
            return tuple(str(one.peer_id) for one in await self._p2p.list_peers())

    async def observed(self, libp2p_id: str) -> tuple[str, ...]:
        """The addresses that a peer's connections come from; none: it has no connection."""
        async with asyncio.timeout(PING_TIMEOUT_S):
            peers = await self._p2p.list_peers()
        return tuple(str(at) for one in peers if str(one.peer_id) == libp2p_id for at in one.addrs)

    async def disconnect(self, libp2p_id: str) -> None:
        """Close the connections to a peer.

        Raises:
            OSError: p2pd does not answer.
        """
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await self._p2p._client.disconnect(PeerID.from_base58(libp2p_id))  # noqa: SLF001
        except (ControlFailure, ValueError) as error:
            raise OSError(f"{libp2p_id} cannot be disconnected: {error}") from error

    @property
    def routing_table_size(self) -> int:
        """How many DHT nodes are known."""
        return len(self._node.protocol.routing_table.uid_to_peer_id)

    async def strangers(self) -> tuple[str, ...]:
        """The libp2p ids of connected peers that are not known as DHT nodes.

        One answer that came too late is enough to be dropped there, while the connection stays.
        """
        known = {str(one) for one in self._node.protocol.routing_table.peer_id_to_uid}
        return tuple(one for one in await self.connected() if one not in known)

    async def dial(self, libp2p_id: str, addresses: tuple[Address, ...]) -> None:
        """Have a connection to a peer.

        Args:
            libp2p_id: Who must answer.
            addresses: Where; none: only a connection that is there already will do.

        Raises:
            OSError: Nobody with this id answers there.
        """
        places = [Multiaddr(one.place) for one in addresses]
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._p2p._client.connect(PeerID.from_base58(libp2p_id), places)  # noqa: SLF001
        except (ControlFailure, ValueError) as error:
            raise OSError(f"{libp2p_id} cannot be dialled: {error}") from error

    async def join(self, libp2p_id: str) -> bool:
        """Get to know a connected peer's part of the DHT.

        Args:
            libp2p_id: The peer.

        Returns:
            Whether it is a DHT node and answered.
        """
        found = await self._node.protocol.call_ping(PeerID.from_base58(libp2p_id))
        if found is not None:
            await self._node.find_nearest_nodes([self._node.node_id])
        return found is not None

    async def refresh(self) -> None:
        """Look a random key up, which drops nodes that no longer answer."""
        await self._node.get(DHTID.generate().to_bytes(), latest=True)

    async def put(self, key: bytes, value: bytes, expires_at_s: float) -> bool:
        """Store a record at the nodes nearest to its key.

        Args:
            key: The key.
            value: The record.
            expires_at_s: Unix seconds; later than that of the record it replaces.

        Returns:
            Whether anybody has taken it.
        """
        return bool(await self._node.store(key, value, float(expires_at_s)))

    async def give(self, libp2p_id: str, key: bytes, value: bytes, expires_at_s: float) -> bool:
        """Store a record at one peer.

        Args:
            libp2p_id: The peer, connected.
            key: The key.
            value: The record.
            expires_at_s: Unix seconds; later than that of the record it replaces.

        Returns:
            Whether it has taken it.
        """
        node, packed = self._node, self._node.protocol.serializer.dumps(value)
        taken = await node.protocol.call_store(
            PeerID.from_base58(libp2p_id), [DHTID.generate(key)], [packed], [float(expires_at_s)]
        )
        return bool(taken and taken[0])

    async def get(self, key: bytes) -> FoundRecord | None:
        """Find the record of a key that expires last.

        Args:
            key: The key.

        Returns:
            The record; None if nobody who answered has one.
        """
        found = await self._node.get(key, latest=True)
        if found is None or not isinstance(found.value, bytes):
            return None
        return FoundRecord(found.value, found.expiration_time)

    async def open_stream(
        self, libp2p_id: str, name: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a stream to a peer.

        Args:
            libp2p_id: The peer.
            name: Which handler of it.

        Returns:
            The two halves; close the second one.

        Raises:
            OSError: The peer cannot be reached or has no such handler.
        """
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                _, reader, writer = await self._p2p.call_binary_stream_handler(
                    PeerID.from_base58(libp2p_id), name
                )
        except (ControlFailure, asyncio.IncompleteReadError, ValueError) as error:
            raise OSError(f"no stream to {libp2p_id}: {error}") from error
        return reader, writer

    async def serve_streams(self, name: str, handler: StreamHandler) -> None:
        """Call a handler for every stream that a peer opens.

        Args:
            name: What peers call it.
            handler: Takes the stream; it need not close it.
        """

        # Any: hivemind has no types.
        async def handle(
            info: Any,  # noqa: ANN401
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
        ) -> None:
            try:
                await handler(str(info.peer_id), reader, writer)
            finally:
                writer.close()

        await self._p2p.add_binary_stream_handler(name, handle)

    async def stop(self) -> None:
        """Close all connections and end p2pd."""
        self._node.is_alive = False
        await self._p2p.shutdown()


async def dial_alone(libp2p_id: str, addresses: tuple[Address, ...]) -> None:
    """Dial a peer from a host that is made for this, has no connection and does not listen.

    Args:
        libp2p_id: Who must answer.
        addresses: Where.

    Raises:
        OSError: Nobody with this id answers there.
    """
    try:
        p2p = await P2P.create(
            host_maddrs=None,
            no_listen=True,
            dht_mode="client",
            auto_nat=False,
            use_relay=False,
            nat_port_map=False,
            startup_timeout=START_TIMEOUT_S,
        )
    except (P2PDaemonError, ControlFailure) as error:
        raise OSError(f"p2pd did not start: {error}") from error
    try:
        places = [Multiaddr(one.place) for one in addresses]
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            await p2p._client.connect(PeerID.from_base58(libp2p_id), places)  # noqa: SLF001
    except (ControlFailure, ValueError) as error:
        raise OSError(f"{libp2p_id} cannot be dialled: {error}") from error
    finally:
        await p2p.shutdown()


def make_identity(folder: Path) -> str:
    """Make the identity of the process with this folder, unless it has one.

    Args:
        folder: The process's folder.

    Returns:
        The libp2p id.

    Raises:
        OSError: It cannot be read or written.
    """
    return str(PeerID.from_identity(_identity_file(folder).read_bytes()))


def _identity_file(folder: Path) -> Path:
    path = folder / "libp2p-identity"
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        P2P.generate_identity(str(partial))
        partial.rename(path)
    return path


def _refuse_dictionary(*_: object) -> bool:
    return False
