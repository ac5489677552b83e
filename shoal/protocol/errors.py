"""Every error of the package, on one page.

    ProtocolError                    root; never raised itself
      LocalProtocolError             our bug or our configuration: propagates, the node stops
        InvalidManifestError         a manifest field is not what it must be (path, expected, found)
        OutOfOrderError              a step was asked for in a state that does not allow it
      RemoteProtocolError            somebody else's bytes: record it, skip that peer, go on
        PayloadError                 one peer's payload
          EquivocationError          two payloads of one peer for one round, with both headers
        AnnouncementError            one peer's announcement
        RecordError                  one round record
          ForkError                  two certified records of one round, with both: halt

Guarantees: a remote error carries one code of a closed set, which is also the label of the metrics
and of the gather report; a code never changes its meaning. `peer` is set only where a verified
signature proves who sent the bytes, so nobody can be blamed with somebody else's key. All errors
survive pickling, because payloads may be checked in another process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shoal.protocol.identity import PeerId


class ErrorCode(StrEnum):
    """The closed set of reasons for refusing bytes; `MEANINGS` has one sentence for each."""

    E_ADDR_NOT_PUBLIC = "E_ADDR_NOT_PUBLIC"
    E_ALL_ZERO = "E_ALL_ZERO"
    E_BODY_HASH = "E_BODY_HASH"
    E_BODY_LEN = "E_BODY_LEN"
    E_CLOCK = "E_CLOCK"
    E_CONFIG = "E_CONFIG"
    E_DHT_EXPIRY_FAR = "E_DHT_EXPIRY_FAR"
    E_DUPLICATE = "E_DUPLICATE"
    E_EMPTY_CHUNK = "E_EMPTY_CHUNK"
    E_EQUIVOCATION = "E_EQUIVOCATION"
    E_FLAGS = "E_FLAGS"
    E_FORK = "E_FORK"
    E_GAP = "E_GAP"
    E_HOST_NOT_ALLOWED = "E_HOST_NOT_ALLOWED"
    E_HTTP_ENCODING = "E_HTTP_ENCODING"
    E_HTTP_REDIRECT = "E_HTTP_REDIRECT"
    E_INDEX_ORDER = "E_INDEX_ORDER"
    E_INDEX_RANGE = "E_INDEX_RANGE"
    E_INTERNAL = "E_INTERNAL"
    E_JSON = "E_JSON"
    E_JSON_DEPTH = "E_JSON_DEPTH"
    E_JSON_DUPKEY = "E_JSON_DUPKEY"
    E_JSON_NUMBER = "E_JSON_NUMBER"
    E_KEY_IN_USE = "E_KEY_IN_USE"
    E_KEY_WEAK = "E_KEY_WEAK"
    E_LEN = "E_LEN"
    E_MAGIC = "E_MAGIC"
    E_MANIFEST = "E_MANIFEST"
    E_OBJECT_KEY = "E_OBJECT_KEY"
    E_PADDING = "E_PADDING"
    E_PARENT = "E_PARENT"
    E_PEER_UNKNOWN = "E_PEER_UNKNOWN"
    E_PREV = "E_PREV"
    E_QUORUM = "E_QUORUM"
    E_QUOTA = "E_QUOTA"
    E_RECORD = "E_RECORD"
    E_ROLLBACK = "E_ROLLBACK"
    E_ROUND_FUTURE = "E_ROUND_FUTURE"
    E_ROUND_OLD = "E_ROUND_OLD"
    E_RUN = "E_RUN"
    E_SCALE_NONFINITE = "E_SCALE_NONFINITE"
    E_SCALE_ORDER = "E_SCALE_ORDER"
    E_SCALE_RANGE = "E_SCALE_RANGE"
    E_SCALE_SIGN = "E_SCALE_SIGN"
    E_SCALE_SUBNORMAL = "E_SCALE_SUBNORMAL"
    E_SIG = "E_SIG"
    E_SIGNER_REPEATED = "E_SIGNER_REPEATED"
    E_STATE = "E_STATE"
    E_URL_EXTRA = "E_URL_EXTRA"
    E_URL_SCHEME = "E_URL_SCHEME"
    E_VERSION = "E_VERSION"


MEANINGS: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        ErrorCode.E_ADDR_NOT_PUBLIC: "The name resolves to an address that is not a public one.",
        ErrorCode.E_ALL_ZERO: "Every chunk of the payload is empty, so it contributes nothing.",
        ErrorCode.E_BODY_HASH: "The body is not the one whose SHA-256 the header carries.",
        ErrorCode.E_BODY_LEN: "The body length in the header is not the one the manifest gives.",
        ErrorCode.E_CLOCK: "This machine's clock is too far from the reference clocks.",
        ErrorCode.E_CONFIG: "A setting is missing, unknown or out of its range.",
        ErrorCode.E_DHT_EXPIRY_FAR: "The DHT value expires too far in the future.",
        ErrorCode.E_DUPLICATE: "The same thing was already there.",
        ErrorCode.E_EMPTY_CHUNK: "A chunk without values is not written in its one canonical way.",
        ErrorCode.E_EQUIVOCATION: "The peer signed two different payloads for one round.",
        ErrorCode.E_FLAGS: "A reserved field is not zero or a header number is out of its range.",
        ErrorCode.E_FORK: "Two different certified records exist for one round.",
        ErrorCode.E_GAP: "The record is for a later round than the next one.",
        ErrorCode.E_HOST_NOT_ALLOWED: "The host is not one that the manifest's templates give.",
        ErrorCode.E_HTTP_ENCODING: "The answer has a content encoding although none was accepted.",
        ErrorCode.E_HTTP_REDIRECT: "The answer is a redirect, which is never followed.",
        ErrorCode.E_INDEX_ORDER: "Indices within a chunk are not strictly increasing.",
        ErrorCode.E_INDEX_RANGE: "An index code names no set of positions of its chunk.",
        ErrorCode.E_INTERNAL: "An unforeseen failure while this peer's bytes were checked.",
        ErrorCode.E_JSON: "Not JSON, not of the expected shape and types, or not canonical.",
        ErrorCode.E_JSON_DEPTH: "The JSON text is nested too deeply.",
        ErrorCode.E_JSON_DUPKEY: "A JSON object has one key twice.",
        ErrorCode.E_JSON_NUMBER: "A JSON number is not an integer of magnitude below 2^53.",
        ErrorCode.E_KEY_IN_USE: "Another node signs with this node's key.",
        ErrorCode.E_KEY_WEAK: "The public key is of small order, not canonical or not a key.",
        ErrorCode.E_LEN: "The object does not have the length that it must have.",
        ErrorCode.E_MAGIC: "The bytes do not begin like an object of the expected kind.",
        ErrorCode.E_MANIFEST: "Made for another manifest of this run.",
        ErrorCode.E_OBJECT_KEY: "The object key is not one that this run computes.",
        ErrorCode.E_PADDING: "Padding bits are not zero.",
        ErrorCode.E_PARENT: "Made from another state than the one this round begins with.",
        ErrorCode.E_PEER_UNKNOWN: "The key is not in the roster.",
        ErrorCode.E_PREV: "The record does not follow the record that is known as its predecessor.",
        ErrorCode.E_QUORUM: "Fewer distinct signers than the manifest's threshold.",
        ErrorCode.E_QUOTA: "This node's own quota for the month is used up.",
        ErrorCode.E_RECORD: "The record's content breaks a rule that has no code of its own.",
        ErrorCode.E_ROLLBACK: "The record is for a round that is already closed.",
        ErrorCode.E_ROUND_FUTURE: "Made for a later round than this one.",
        ErrorCode.E_ROUND_OLD: "Made for an earlier round than this one.",
        ErrorCode.E_RUN: "Made for another run.",
        ErrorCode.E_SCALE_NONFINITE: "A scale is infinite or not a number.",
        ErrorCode.E_SCALE_ORDER: "The two scales of a chunk are not in their canonical order.",
        ErrorCode.E_SCALE_RANGE: "A scale is larger than the manifest allows.",
        ErrorCode.E_SCALE_SIGN: "A scale is negative.",
        ErrorCode.E_SCALE_SUBNORMAL: "A scale is subnormal, which machines may treat differently.",
        ErrorCode.E_SIG: "The signature does not verify.",
        ErrorCode.E_SIGNER_REPEATED: "One key signed the same message more than once.",
        ErrorCode.E_STATE: "The record's state hash is not what its payloads give.",
        ErrorCode.E_URL_EXTRA: "The address carries user, port, query or fragment parts.",
        ErrorCode.E_URL_SCHEME: "The address is not an https one.",
        ErrorCode.E_VERSION: "The format version or the codec is not the one this run uses.",
    }
)


class ProtocolError(Exception):
    """Root of the package's errors; never raised itself."""


class LocalProtocolError(ProtocolError):
    """Our own bug or our own configuration; the node stops."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidManifestError(LocalProtocolError):
    """A manifest field is not what it must be; `path` is dotted, as in `model.hidden_size`."""

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(f"{path}: expected {expected}, found {found}")
        self.path = path
        self.expected = expected
        self.found = found
        self.args = (path, expected, found)

    def __str__(self) -> str:
        return self.message


class OutOfOrderError(LocalProtocolError):
    """A step was asked for in a state that does not allow it."""


class RemoteProtocolError(ProtocolError):
    """Bytes of somebody else were refused.

    `code` is the reason, `detail` says what was expected and what was found (for people; never
    parsed), `peer` is set only where a verified signature proves the sender.
    """

    def __init__(self, code: ErrorCode, detail: str, peer: PeerId | None = None) -> None:
        super().__init__(code, detail, peer)
        self.code = code
        self.detail = detail
        self.peer = peer

    def __str__(self) -> str:
        sender = "" if self.peer is None else f" (peer {self.peer.short})"
        return f"{self.code}: {self.detail}{sender}"


class PayloadError(RemoteProtocolError):
    """A payload was refused."""


class EquivocationError(PayloadError):
    """Two payloads of one peer for one round.

    `first` and `second` are the two raw signed headers (header, then signature); `first` is empty
    where the caller kept only the id of the earlier payload.
    """

    def __init__(self, detail: str, peer: PeerId, first: bytes, second: bytes) -> None:
        super().__init__(ErrorCode.E_EQUIVOCATION, detail, peer)
        self.first = first
        self.second = second
        self.args = (detail, peer, first, second)


class AnnouncementError(RemoteProtocolError):
    """An announcement was refused."""


class RecordError(RemoteProtocolError):
    """A round record was refused."""


class ForkError(RecordError):
    """Two certified records of one round; `known` and `other` are their raw bytes. Halt."""

    def __init__(self, detail: str, known: bytes, other: bytes) -> None:
        super().__init__(ErrorCode.E_FORK, detail)
        self.known = known
        self.other = other
        self.args = (detail, known, other)


@contextmanager
def reported_as(kind: type[RemoteProtocolError]) -> Iterator[None]:
    """Give refusals that come from deeper layers the class of the object that was refused.

    Args:
        kind: The class to raise; its constructor takes code, detail and peer.

    Yields:
        Nothing.

    Raises:
        RemoteProtocolError: Of class `kind`, with the code, detail and peer of the original one.
    """
    try:
        yield
    except RemoteProtocolError as error:
        if isinstance(error, kind):
            raise
        raise kind(error.code, error.detail, error.peer) from error
