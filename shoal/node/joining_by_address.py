"""The manifest of a run, from one peer that is known by a multiaddr.

Guarantees: a network process is started for this alone, does not listen, and ends with it; only the
given address is dialled; at most `MAX_MANIFEST_BYTES` are taken, and the peer's claim of the length
is compared with that first.

Does not do: read the manifest, or compare it with a run id.
"""

import re
import tempfile
from typing import Final

from shoal.node.errors import ConfigError, ResourceError
from shoal.node.network.addresses import Address, parse_seed
from shoal.node.network.client import NetworkClient
from shoal.node.network.dnsaddr import dns_look_up, is_dnsaddr, resolve_dnsaddr, resolve_host
from shoal.node.network.errors import WrongBytesError
from shoal.node.network.messages import Start
from shoal.node.network.object_ids import ANY_MANIFEST_ID
from shoal.protocol.identity import generate
from shoal.protocol.manifest import MAX_MANIFEST_BYTES
from shoal.storage.errors import StorageError

TIMEOUT_S: Final = 60.0
NO_RUN_ID: Final = bytes(32)
_ADDRESS: Final = re.compile(r"/(?:ip4|ip6|dns4|dns6|dnsaddr)/\S+")


def is_address(source: str) -> bool:
    """Whether a run is named by a multiaddr, not by a URL or a file."""
    return _ADDRESS.fullmatch(source) is not None


async def fetch_by_address(text: str, pin: bytes | None) -> bytes:
    """Asks a peer for the manifest of its run.

    Args:
        text: its multiaddr, with its libp2p id, or /dnsaddr/NAME.
        pin: the run's id; None: of whatever run it is in.

    Returns:
        The bytes, at most `MAX_MANIFEST_BYTES`; nothing of them is checked.

    Raises:
        ConfigError: the text is no such address.
        ResourceError: nobody gives a manifest there.
    """
    try:
        addresses = await _resolve(text)
    except ValueError as error:
        expected = "/ip4/ADDRESS/tcp/PORT/p2p/ID (or ip6, dns4, dns6) or /dnsaddr/NAME"
        raise ConfigError("command line", "RUN", expected, f"{text} ({error})") from error
    except OSError as error:
        raise ResourceError(f"{text} cannot be looked up: {error}") from error
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        options = Start(
            folder=folder,
            run_id=pin or NO_RUN_ID,
            round_ms=60_000,
            client_mode=True,
            # The address is the user's own.
            allow_private=True,
        )
        async with NetworkClient(options, generate()) as network:
            return await _ask_each(network, addresses, pin or ANY_MANIFEST_ID, text)


async def _resolve(text: str) -> tuple[Address, ...]:
    """Numbers with ids, at least one.

    Raises:
        ValueError: it is no address of a peer.
        OSError: nobody knows the name.
    """
    named = await resolve_dnsaddr(text, dns_look_up()) if is_dnsaddr(text) else (parse_seed(text),)
    found: list[Address] = []
    trouble = OSError("no address")
    for one in named:
        try:
            found += await resolve_host(one)
        except OSError as error:
            trouble = error
    if not found:
        raise trouble
    return tuple(found)


async def _ask_each(
    network: NetworkClient, addresses: tuple[Address, ...], object_id: bytes, text: str
) -> bytes:
    by_peer: dict[str, tuple[str, ...]] = {}
    for one in addresses:
        by_peer[one.libp2p_id] = (*by_peer.get(one.libp2p_id, ()), one.text)
    trouble: StorageError | None = None
    for source in by_peer.values():
        try:
            return await _ask(network, source, object_id)
        except StorageError as error:
            trouble = error
    raise ResourceError(f"{text} gives no manifest: {trouble}")


async def _ask(network: NetworkClient, source: tuple[str, ...], object_id: bytes) -> bytes:
    num_bytes = await network.ask_size(object_id, source, TIMEOUT_S)
    if not 0 < num_bytes <= MAX_MANIFEST_BYTES:
        text = f"it says {num_bytes} bytes, at most {MAX_MANIFEST_BYTES} are a manifest"
        raise WrongBytesError(text, "")
    return await network.fetch(
        object_id,
        [source],
        num_bytes=num_bytes,
        timeout_s=TIMEOUT_S,
        named_by_hash=False,
    )
