"""`shoal join URL`: everything that a volunteer has to type.

Guarantees: the first time, a key and a node.toml are made in a folder of the run's own, and said;
later the same command finds them. A URL may pin the run: https://host#<run id>; a manifest with
another hash is refused. What doctor calls a failure stops the join before anything is trained.

Does not do: trust a server for more than being where the run is: manifest, records and payloads
prove themselves; without a pin it is the first answer that says which run is meant.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from shoal.node.checkpoint import write_atomically
from shoal.node.errors import ConfigError, ResourceError
from shoal.protocol.errors import InvalidManifestError, RemoteProtocolError
from shoal.protocol.identity import generate, load_key, save_key
from shoal.protocol.manifest import MAX_MANIFEST_BYTES, RunManifest, read_manifest
from shoal.storage.errors import StorageError
from shoal.storage.http import HttpStore
from shoal.storage.proxy import is_proxy_url

_URL = re.compile(r"(https?://[^#\s]+?)/?(?:#([0-9a-f]{64}))?")

_NODE_TOML = """\
# Made by `shoal join`; change what you like. The key is this node's identity: keep a copy of it.
key_file = "key.pem"
state_dir = "state"
num_threads = {num_threads}
proxy = "{proxy}"

[store]
kind = "http"
url = "{url}"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The folder of one run on this machine."""

    manifest: RunManifest
    config_file: Path
    peer: str
    is_new: bool


def is_url(source: str) -> bool:
    """Whether a run is named by a URL, not by a file."""
    return source.startswith(("http://", "https://"))


async def find_home(source: str, root: Path, num_threads: int, proxy: str = "") -> Home:
    """Asks the server for its run, and finds or makes the folder for it.

    Args:
        source: URL of a validator's HTTP service, perhaps with #<run id>.
        root: below it every run has a folder.
        num_threads: for a new node.toml.
        proxy: `http://HOST:PORT` to go through, also for a new node.toml; empty: none.

    Raises:
        ConfigError: the URL is none, or the run is another than the pinned one.
        ResourceError: the server does not answer, or the folder cannot be made.
    """
    match = _URL.fullmatch(source)
    if match is None:
        raise ConfigError("command line", "MANIFEST", "a URL or a manifest file", source)
    url, pin = match[1], match[2]
    if proxy and not is_proxy_url(proxy):
        raise ConfigError("command line", "--proxy", "http://HOST:PORT, and nothing else", proxy)
    manifest = await _fetch(url, pin, proxy)
    folder = root / manifest.run_id.hex()[:16]
    config_file = folder / "node.toml"
    is_new = not config_file.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "key.pem").exists():
            save_key(folder / "key.pem", generate())
        write_atomically(folder / "manifest.json", manifest.to_bytes())
        if is_new:
            toml = _NODE_TOML.format(num_threads=num_threads, url=url, proxy=proxy)
            write_atomically(config_file, toml.encode())
    except OSError as error:
        raise ResourceError(f"{folder}: {error.strerror}") from error
    peer = load_key(folder / "key.pem").peer.text
    return Home(manifest=manifest, config_file=config_file, peer=peer, is_new=is_new)


async def _fetch(url: str, pin: str | None, proxy: str) -> RunManifest:
    try:
        async with HttpStore(url, proxy=proxy) as store:
            raw = await store.read_page("manifest", MAX_MANIFEST_BYTES)
    except StorageError as error:
        raise ResourceError(f"{url} gives no manifest: {error}") from error
    try:
        manifest = read_manifest(raw)
    except (InvalidManifestError, RemoteProtocolError) as error:
        raise ConfigError(url, "manifest", "the manifest of a run", str(error)) from error
    if pin is not None and manifest.run_id.hex() != pin:
        raise ConfigError(url, "run id", pin, manifest.run_id.hex())
    return manifest
