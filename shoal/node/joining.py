"""`shoal join URL` and `shoal join MULTIADDR`: everything that a volunteer has to type.

Guarantees: the first time, a key and a node.toml are made in a folder of the run's own, and said;
later the same command finds them. The run may be pinned: https://host#<run id>, or the same behind
a multiaddr; a manifest with another hash is refused. What doctor calls a failure stops the join
before anything is trained.

Does not do: trust a server or peer for more than being where the run is: manifest, records and
payloads prove themselves; without a pin it is the first answer that says which run is meant.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from shoal.node.checkpoint import write_atomically
from shoal.node.config import BASE_URL, is_base_url
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.joining_by_address import fetch_by_address, is_address
from shoal.node.looking import is_there
from shoal.protocol.errors import InvalidManifestError, RemoteProtocolError
from shoal.protocol.identity import generate, load_key, save_key
from shoal.protocol.manifest import MAX_MANIFEST_BYTES, RunManifest, read_manifest
from shoal.storage.errors import ObjectNotFoundError, StorageError
from shoal.storage.http import HttpStore
from shoal.storage.proxy import is_proxy_url

_NO_VALIDATOR = "some other server answers there, is it the address of the run's validator?"
_SOURCE = re.compile(r"((?:https?:/)?/[^#\s]+?)/?(?:#([0-9a-f]{64}))?")

_NODE_TOML = """\
# Made by `shoal join`; change what you like. The key is this node's identity: keep a copy of it.
key_file = "key.pem"
state_dir = "state"
num_threads = {num_threads}
proxy = "{proxy}"
"""

_HTTP_TOML = """
[store]
kind = "http"
url = {place}
"""

_P2P_TOML = """
[store]
kind = "p2p"

[payloads]
kind = "p2p"

[network]
enabled = true
seeds = [{place}]
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The folder of one run on this machine."""

    manifest: RunManifest
    config_file: Path
    peer: str
    is_new: bool
    """The key was made just now."""
    is_pinned: bool
    """The user said which run it must be; else its source did."""
    seeds: tuple[str, ...] = ()
    """Peers to ask first, besides those of the configuration."""


def names_a_run(source: str) -> bool:
    """Whether a run is named by a URL or a multiaddr, not by a file."""
    place = source.partition("#")[0]
    return source.startswith(("http://", "https://")) or is_address(place)


async def find_home(source: str, root: Path, num_threads: int, proxy: str = "") -> Home:
    """Asks a server or a peer for its run, and finds or makes the folder for it.

    Args:
        source: URL of a validator's HTTP service or multiaddr of a peer, perhaps with #<run id>.
        root: below it every run has a folder.
        num_threads: for a new node.toml.
        proxy: `http://HOST:PORT` to go through, also for a new node.toml; empty: none.

    Raises:
        ConfigError: the source is none, or the run is another than the pinned one.
        ResourceError: nobody answers there, or the folder cannot be made.
    """
    place, pin = _parse(source)
    _check_proxy(place, proxy)
    manifest = _read(await _fetch(place, pin, proxy), place, pin)
    folder = root / manifest.run_id.hex()[:16]
    config_file = folder / "node.toml"
    is_new = not is_there(folder / "key.pem", "--home")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_new:
            save_key(folder / "key.pem", generate())
        write_atomically(folder / "manifest.json", manifest.to_bytes())
        if not is_there(config_file, "--home"):
            store = _P2P_TOML if is_address(place) else _HTTP_TOML
            toml = _NODE_TOML + store
            values = {"num_threads": num_threads, "proxy": proxy, "place": json.dumps(place)}
            write_atomically(config_file, toml.format(**values).encode())
    except OSError as error:
        raise ResourceError(f"{folder}: {error.strerror}") from error
    return Home(
        manifest=manifest,
        config_file=config_file,
        peer=load_key(folder / "key.pem").peer.text,
        is_new=is_new,
        is_pinned=pin is not None,
        seeds=(place,) if is_address(place) else (),
    )


def _parse(source: str) -> tuple[str, str | None]:
    """Where the run is, and which one it must be.

    Raises:
        ConfigError: it is not written as it must be.
    """
    match = _SOURCE.fullmatch(source)
    if match is None or not names_a_run(source):
        expected = "a URL or a multiaddr, perhaps with # and a run id of 64 hex digits"
        raise ConfigError("command line", "RUN", expected, source)
    if not is_address(match[1]) and not is_base_url(match[1]):
        raise ConfigError("command line", "RUN", BASE_URL, source)
    return match[1], match[2]


def _check_proxy(place: str, proxy: str) -> None:
    if proxy and not is_proxy_url(proxy):
        raise ConfigError("command line", "--proxy", "http://HOST:PORT, and nothing else", proxy)
    if proxy and is_address(place):
        expected = "a URL as the run: libp2p goes through no proxy"
        raise ConfigError("command line", "--proxy", expected, place)


async def _fetch(place: str, pin: str | None, proxy: str) -> bytes:
    if is_address(place):
        return await fetch_by_address(place, None if pin is None else bytes.fromhex(pin))
    try:
        async with HttpStore(place, proxy=proxy) as store:
            return await store.read_page("manifest", MAX_MANIFEST_BYTES)
    except ObjectNotFoundError as error:
        raise ResourceError(f"{place} gives no manifest: {_NO_VALIDATOR}") from error
    except StorageError as error:
        ask = "check the address and the network, or ask whoever runs it"
        raise ResourceError(f"{place} gives no manifest: {error}; {ask}") from error


def _read(raw: bytes, place: str, pin: str | None) -> RunManifest:
    try:
        manifest = read_manifest(raw)
    except (InvalidManifestError, RemoteProtocolError) as error:
        found = f"{error}; {_NO_VALIDATOR}"
        raise ConfigError(place, "manifest", "the manifest of a run", found) from error
    # The hash, not `run_id`: a later version only says which run it is of.
    if pin is not None and manifest.manifest_hash.hex() != pin:
        raise ConfigError(place, "run id", pin, manifest.manifest_hash.hex())
    return manifest
