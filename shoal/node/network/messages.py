"""What a node asks its network process, and what it is told.

A message is a frozen dataclass; `packing` writes and reads it. Ranges that depend on meaning are
checked by the process, where the values are used.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from shoal.node.network.finding_messages import AddSeeds, AskReach, Probed, ProbeSeed, Reach


class FailCode(StrEnum):
    """Why a request was not done; closed."""

    BAD_REQUEST = "bad_request"
    BUSY = "busy"
    INTERNAL = "internal"
    NOT_FOUND = "not_found"
    REFUSED = "refused"
    SIZE = "size"
    UNAVAILABLE = "unavailable"
    WRONG_BYTES = "wrong_bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The first request: what to be. Answered by `Status` as soon as the process listens."""

    folder: str
    """For the libp2p identity, the list of good peers and the sockets of p2pd; mode 0700."""
    run_id: bytes
    round_ms: int
    """The longest round; a record may expire two of them ahead."""
    listen: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/0",)
    announce: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    """Of this node's own settings."""
    run_seeds: tuple[str, ...] = ()
    """Of the run's manifest."""
    dns_server: str = ""
    """address:port of what answers for /dnsaddr/ seeds; empty: the system's DNS servers."""
    client_mode: bool = False
    use_relay: bool = False
    map_port: bool = False
    allow_private: bool = False
    """Whether addresses that are not public may be dialled: for runs on one machine or network."""
    roster: tuple[str, ...] = ()
    """Keys that may publish records, hex; empty: anyone."""
    folders: tuple[str, ...] = ()
    """Their files are served too, by the id that is the file's name (hex, perhaps with a "+")."""
    max_uploads: int = 16
    max_uploads_per_peer: int = 2
    min_bytes_per_s: int = 16 * 1024
    upload_bytes_per_s: int = 0
    """This process's part of the node's cap; 0: no cap."""
    download_bytes_per_s: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ping:
    """Are you and p2pd alive? Answered by `Done`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskStatus:
    """Answered by `Status`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtPut:
    """Publish a record. Answered by `Done`."""

    key: bytes
    value: bytes
    expires_at_s: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtGet:
    """Look a record up. Answered by `Found`."""

    key: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtGive:
    """Store a record at one peer, wherever it belongs. Answered by `Done`."""

    addresses: tuple[str, ...]
    key: bytes
    value: bytes
    expires_at_s: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AskPeers:
    """Whose records have passed here lately? Answered by `Peers`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Connect:
    """Dial a peer. Answered by `Done`."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Serve:
    """Give a file to whoever asks for its id. Answered by `Done`."""

    object_id: bytes
    path: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Withdraw:
    """Serve an object no longer; idempotent. Answered by `Done`."""

    object_id: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowUploads:
    """Whether large objects are given away; small ones always are. Answered by `Done`."""

    allowed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch:
    """Get a part of an object from one peer: chunks, then `Done`."""

    addresses: tuple[str, ...]
    object_id: bytes
    total_bytes: int
    """Of the whole object."""
    offset: int
    num_bytes: int
    """Wanted from the offset on."""
    timeout_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AskSize:
    """How long is an object that a peer serves? Answered by `Size`."""

    addresses: tuple[str, ...]
    object_id: bytes
    timeout_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """It is done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a look-up found; an empty value: nothing."""

    value: bytes = b""
    expires_at_s: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """Public keys of 32 bytes each, one after the other, at most `MAX_KNOWN_PEERS`."""

    keys: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Length of an object."""

    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """It is not done, and why."""

    code: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What the process sees of the network."""

    peer_id: str
    """The libp2p id of this process."""
    process_id: int
    p2pd_process_id: int
    addresses: tuple[str, ...]
    """Under which others may reach it, without the peer id."""
    connected: tuple[str, ...] = ()
    """libp2p ids of the peers with a connection, at most 64 of them."""
    num_connected: int = 0
    routing_table_size: int = 0
    seeds: tuple[str, ...] = ()
    """One line per seed: its address and how it answered."""
    last_error: str = ""
    num_served: int = 0
    num_bytes_up: int = 0
    num_bytes_down: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Refused records by code."""


Request: TypeAlias = (
    Start
    | Ping
    | AskStatus
    | DhtPut
    | DhtGet
    | DhtGive
    | AskPeers
    | Connect
    | Serve
    | Withdraw
    | AllowUploads
    | Fetch
    | AskSize
    | AddSeeds
    | ProbeSeed
    | AskReach
)
Answer: TypeAlias = Done | Found | Peers | Size | Status | Probed | Reach | Failed
Message: TypeAlias = Request | Answer

REQUESTS: Final = (
    Start,
    Ping,
    AskStatus,
    DhtPut,
    DhtGet,
    DhtGive,
    AskPeers,
    Connect,
    Serve,
    Withdraw,
    AllowUploads,
    Fetch,
    AskSize,
    AddSeeds,
    ProbeSeed,
    AskReach,
)
ANSWERS: Final = (Done, Found, Peers, Size, Status, Probed, Reach, Failed)
