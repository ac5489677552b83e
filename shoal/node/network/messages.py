"""What a node asks its network process, and what it is told.

A message is a frozen dataclass; on the wire it is a msgpack map of its fields plus "type", its
class's name. Field types: bool, int (0 to 2^63 - 1), str, bytes, tuples of str, and counts by name.

Guarantees of `unpack`: any bytes give a message or a `FrameError`; no key twice, none missing, none
unknown; every value of the declared type. The caller has bounded the length, which bounds the rest.

Not done here: ranges that depend on meaning (the process checks them where they are used).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Final, TypeAlias, get_type_hints

import msgpack

from shoal.node.network.errors import FrameError

_INT_LIMIT: Final = 2**63


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
    client_mode: bool = False
    use_relay: bool = False
    map_port: bool = False
    allow_private: bool = False
    """Whether addresses that are not public may be dialled: for runs on one machine or network."""
    roster: tuple[str, ...] = ()
    """Keys that may publish records, hex; empty: anyone."""
    max_uploads: int = 16
    max_uploads_per_peer: int = 2
    min_bytes_per_s: int = 16 * 1024


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
class Fetch:
    """Get an object from one peer: chunks, then `Done`."""

    addresses: tuple[str, ...]
    object_id: bytes
    num_bytes: int
    """Of the whole object."""
    offset: int
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
    Start | Ping | AskStatus | DhtPut | DhtGet | Connect | Serve | Withdraw | Fetch | AskSize
)
Answer: TypeAlias = Done | Found | Size | Status | Failed
Message: TypeAlias = Request | Answer

_REQUESTS: Final = (
    Start,
    Ping,
    AskStatus,
    DhtPut,
    DhtGet,
    Connect,
    Serve,
    Withdraw,
    Fetch,
    AskSize,
)
_ANSWERS: Final = (Done, Found, Size, Status, Failed)
_BY_NAME: Final[dict[str, type[Message]]] = {
    kind.__name__: kind for kind in (*_REQUESTS, *_ANSWERS)
}


def pack(message: Message) -> bytes:
    """Write a message.

    Args:
        message: The message.

    Returns:
        Bytes that `unpack` reads.
    """
    values = {one.name: getattr(message, one.name) for one in fields(message)}
    packed: bytes = msgpack.packb({"type": type(message).__name__, **values})
    return packed


def unpack(raw: bytes | memoryview) -> Message:
    """Read a message; the sender is trusted for nothing.

    Args:
        raw: The body of a frame.

    Returns:
        The message.

    Raises:
        FrameError: The bytes are no message.
    """
    values = _to_map(raw)
    name = values.pop("type", None)
    kind = _BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        raise FrameError("a message of an unknown type")
    checks = _checks(kind)
    if values.keys() != checks.keys():
        raise FrameError(f"{name} has other fields than {sorted(checks)}")
    for key, check in checks.items():
        if not check(values[key]):
            raise FrameError(f"{name}.{key} has another type")
    return kind(**values)


def unpack_request(raw: bytes | memoryview) -> Request:
    """Read a message that must be a request; as `unpack`."""
    message = unpack(raw)
    if not isinstance(message, _REQUESTS):
        raise FrameError(f"{type(message).__name__} is no request")
    return message


def unpack_answer(raw: bytes | memoryview) -> Answer:
    """Read a message that must be an answer; as `unpack`."""
    message = unpack(raw)
    if not isinstance(message, _ANSWERS):
        raise FrameError(f"{type(message).__name__} is no answer")
    return message


# object: values come from msgpack, and `_checks` looks at each of them.
def _to_map(raw: bytes | memoryview) -> dict[str, object]:
    try:
        value = msgpack.unpackb(
            raw, use_list=False, object_pairs_hook=_unique_keys, ext_hook=_no_extension
        )
    except FrameError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FrameError("a message that is no msgpack") from error
    if not isinstance(value, dict):
        raise FrameError("a message that is no map")
    return value


def _unique_keys(pairs: list[tuple[object, object]]) -> dict[object, object]:
    values = dict(pairs)
    if len(values) != len(pairs) or not all(isinstance(key, str) for key in values):
        raise FrameError("a map with a key twice or one that is no text")
    return values


def _no_extension(code: int, data: bytes) -> object:
    raise FrameError(f"msgpack extension {code} of {len(data)} bytes")


@cache
def _checks(kind: type[Message]) -> dict[str, Callable[[object], bool]]:
    return {name: _CHECKS[hint] for name, hint in get_type_hints(kind).items()}


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _INT_LIMIT


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, str) for one in value)


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_int(one) for one in value.values())


_CHECKS: Final[dict[object, Callable[[object], bool]]] = {
    bool: lambda value: isinstance(value, bool),
    int: _is_int,
    str: lambda value: isinstance(value, str),
    bytes: lambda value: isinstance(value, bytes),
    tuple[str, ...]: _is_texts,
    dict[str, int]: _is_counts,
}
