"""Configuration files: what may differ between nodes, and the plan from which a run is made.

Guarantees: a loaded value has every field checked; an unknown key, a wrong type or a number out of
range is a `ConfigError` with file, field, expected and found. Paths in a file are relative to it.

Does not do: take anything but secrets from the environment, or merge several files. What must be
equal on all nodes is `protocol.manifest.RunManifest`.
"""

import os
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from shoal.node.errors import ConfigError
from shoal.node.web.address import parse_listen
from shoal.protocol.errors import InvalidManifestError
from shoal.protocol.manifest import (
    AdmissionSection,
    CodecSection,
    EndpointsSection,
    ModelSection,
    OuterSection,
    RunSection,
    TimingSection,
    TrainingSection,
)
from shoal.protocol.schema import Notation, bounded, from_plain, one_of
from shoal.storage.pacing import MIN_CAP_BYTES_PER_S
from shoal.storage.proxy import is_proxy_url

T = TypeVar("T")

BASE_URL: Final = "http://HOST:PORT or https://HOST, perhaps with a path, without user or query"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """Where the run's objects are."""

    kind: str = one_of("directory", "http", "s3", "p2p", default="directory")
    """p2p: the network alone, neither HTTP nor a bucket."""
    path: str = ""
    """Root folder of a directory store."""
    url: str = ""
    """Base of a validator's HTTP service, for kind = "http"; with kind = "s3" what a peer announces
    goes there, because only validators write into the run's bucket."""
    endpoint: str = ""
    """Scheme, host and perhaps port of the S3 server, for kind = "s3"."""
    bucket: str = ""
    prefix: str = ""
    """A folder of the bucket; empty: its top."""
    region: str = "us-east-1"
    lists_in_order: bool = True
    """The server lists keys in byte order; SeaweedFS does not."""
    joins_once: bool = True
    """The server keeps create-once also when several writers join parts; SeaweedFS does not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PayloadsConfig:
    """Where this node's own payloads go."""

    kind: str = one_of("store", "s3", "p2p", default="store")
    """store: beside the run's objects; s3: a bucket of its own; p2p: served by this node."""
    provider: str = ""
    """One of the manifest's `endpoints.providers`, for kind = "s3"."""
    account: str = ""
    bucket: str = ""
    region: str = "us-east-1"
    lists_in_order: bool = True
    joins_once: bool = True
    """Both as in `[store]`, for the bucket of this node."""
    local_port: int = bounded(0, 65535, default=0)
    """What `{port}` stands for in the providers of a run on one machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """The libp2p process; it runs where `enabled` or where payloads are served by p2p."""

    enabled: bool = False
    """Fetch what other peers serve."""
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
    announce: tuple[str, ...] = ()
    """Addresses under which others reach this node, if not those it listens on."""
    seeds: tuple[str, ...] = ()
    """Peers to ask first, besides the manifest's: multiaddrs with ids, or /dnsaddr/NAME."""
    dns_server: str = ""
    """`ADDRESS:PORT` of what answers for /dnsaddr/ seeds; empty: the system's DNS servers."""
    client_mode: bool = False
    """Nobody can reach this node: outgoing connections only."""
    use_relay: bool = False
    map_port: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """What a validator offers to peers without a bucket or a reachable address."""

    listen: str = ""
    """host:port of the HTTP service and inbox; empty: none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WebConfig:
    """The node's own page and metrics."""

    listen: str = ""
    """`HOST:PORT`, port 0 for any free one; empty: no page."""
    hosts: tuple[str, ...] = ()
    """Names, without port, under which a browser may ask for it, behind a proxy for example."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BandwidthConfig:
    """What this node may take of its link; 0 is no limit. 1 Mbit/s is 125_000 bytes/s."""

    upload_bytes_per_s: int = bounded(0, 1 << 40, default=0)
    download_bytes_per_s: int = bounded(0, 1 << 40, default=0)
    control_ratio: float = bounded(0.0, 0.5, default=0.05)
    """Of a cap, for announcements, records and lists alone; never less than 16 KiB/s."""
    monthly_upload_bytes: int = bounded(0, 2**53 - 1, default=0)
    """In a calendar month (UTC); when it is used up, this node follows and publishes nothing."""
    monthly_download_bytes: int = bounded(0, 2**53 - 1, default=0)
    """When it is used up, this node stops."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    """What may differ between the nodes of one run."""

    key_file: str
    """The node's Ed25519 key, made by `shoal keygen`."""
    state_dir: str
    """Checkpoints, downloaded data and the event log."""
    store: StoreConfig
    payloads: PayloadsConfig = field(default_factory=PayloadsConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    device: str = one_of("cpu", "cuda", default="cpu")
    num_threads: int = bounded(1, 1024, default=1)
    """Threads of the training computation."""
    clock_offset_s: float = bounded(-86400.0, 86400.0, default=0.0)
    """Added to this machine's clock, where that cannot be set."""
    web: WebConfig = field(default_factory=WebConfig)
    bandwidth: BandwidthConfig = field(default_factory=BandwidthConfig)
    proxy: str = ""
    """`http://HOST:PORT` of a proxy that HTTP and S3 go through; empty: none, whatever the
    environment says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPlan:
    """From which texts the run's tokens are made."""

    texts: tuple[str, ...]
    vocab_size: int = bounded(258, 1 << 20)
    seq_len: int = bounded(2, 1 << 20)
    shard_tokens: int = bounded(1, 1 << 40, default=1 << 26)
    held_out_ratio: float = bounded(0.0001, 0.5, default=0.02)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenesisPlan:
    """How the first parameters are made."""

    seed: int = bounded(0, 2**53 - 1, default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmPlan:
    """How many nodes `shoal swarm` starts on one machine."""

    num_peers: int = bounded(1, 255, default=4)
    num_validators: int = bounded(1, 1, default=1)
    """One for now: the agreement of several is not built yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """What whoever starts a run writes down; `shoal init` makes the manifest from it."""

    run: RunSection
    model: ModelSection
    data: DataPlan
    training: TrainingSection
    timing: TimingSection
    codec: CodecSection = field(default_factory=CodecSection)
    outer: OuterSection = field(default_factory=OuterSection)
    admission: AdmissionSection = field(default_factory=AdmissionSection)
    endpoints: EndpointsSection = field(default_factory=EndpointsSection)
    genesis: GenesisPlan = field(default_factory=GenesisPlan)
    swarm: SwarmPlan = field(default_factory=SwarmPlan)


def load_node_config(path: Path) -> NodeConfig:
    """Reads `node.toml`; its paths come back absolute.

    Raises:
        ConfigError: the file is missing, not TOML, or a field is wrong.
    """
    config = _load(NodeConfig, path)
    if config.web.listen and parse_listen(config.web.listen) is None:
        expected = 'HOST:PORT, as in "127.0.0.1:8080", or an empty text for no page'
        raise ConfigError(path, "web.listen", expected, repr(config.web.listen))
    if config.proxy and not is_proxy_url(config.proxy):
        raise ConfigError(path, "proxy", "http://HOST:PORT, and nothing else", config.proxy)
    _check_caps(path, config.bandwidth)
    base = path.resolve().parent
    return replace(
        config,
        key_file=str(base / config.key_file),
        state_dir=str(base / config.state_dir),
        store=_resolved(path, config.store),
    )


def _check_caps(file: Path, section: BandwidthConfig) -> None:
    """A cap below the least rate that others accept would never finish anything."""
    for name in ("upload_bytes_per_s", "download_bytes_per_s"):
        if 0 < getattr(section, name) < MIN_CAP_BYTES_PER_S:
            expected = f"0 (no cap) or at least {MIN_CAP_BYTES_PER_S} bytes/s"
            raise ConfigError(file, f"bandwidth.{name}", expected, str(getattr(section, name)))


def _resolved(file: Path, store: StoreConfig) -> StoreConfig:
    """The store with an absolute path, and the one key that its kind needs."""
    needed = {"directory": ("path",), "http": ("url",), "s3": ("endpoint", "bucket"), "p2p": ()}
    for name in needed[store.kind]:
        if not getattr(store, name):
            raise ConfigError(file, f"store.{name}", f"a value (kind is {store.kind})", "nothing")
    if store.url and store.kind == "p2p":
        expected = 'nothing (kind is p2p; for both, kind = "http" and [network] enabled = true)'
        raise ConfigError(file, "store.url", expected, store.url)
    if store.url and not is_base_url(store.url):
        raise ConfigError(file, "store.url", BASE_URL, store.url)
    return replace(store, path=str(file.resolve().parent / store.path))


def read_s3_secrets() -> tuple[str, str, str] | None:
    """The only values that come from the environment; None where no key is set.

    Returns:
        Access key, secret key and session token (empty for a permanent key) of the bucket that
        this node writes to.
    """
    names = ("SHOAL_S3_ACCESS_KEY_ID", "SHOAL_S3_SECRET_ACCESS_KEY", "SHOAL_S3_SESSION_TOKEN")
    access, secret, token = (os.environ.get(name, "") for name in names)
    return (access, secret, token) if access and secret else None


def is_base_url(text: str) -> bool:
    """Whether a server can be asked at it; a password in it would end up in logs."""
    try:
        parts = urlsplit(text)
        is_place = bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        return False
    is_plain = text.isprintable() and not set(text) & set(" ?#\\")
    return parts.scheme in ("http", "https") and is_place and is_plain


def load_run_plan(path: Path) -> RunPlan:
    """Reads a run plan; the texts' paths come back absolute.

    Raises:
        ConfigError: the file is missing, not TOML, or a field is wrong.
    """
    plan = _load(RunPlan, path)
    base = path.resolve().parent
    texts = tuple(str(base / text) for text in plan.data.texts)
    return replace(plan, data=replace(plan.data, texts=texts))


def _load(cls: type[T], path: Path) -> T:
    try:
        with path.open("rb") as file:
            plain = tomllib.load(file)
    except FileNotFoundError as error:
        raise ConfigError(path, "the file", "a TOML file", "no such file") from error
    except OSError as error:
        raise ConfigError(path, "the file", "a readable file", error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        # Not TOML, not UTF-8, a number of thousands of digits, or lists in lists in lists.
        raise ConfigError(path, "the whole file", "TOML", str(error)) from error
    try:
        return from_plain(cls, plain, Notation.NATIVE)
    except InvalidManifestError as error:
        raise ConfigError(path, error.path, error.expected, error.found) from error
