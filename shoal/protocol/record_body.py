"""The body of a round record: its fields and their one byte form.

Canonical JSON with exactly these keys (hashes are 64 lower-case hex digits):

    kind          "shoal/record/1"
    run, manifest hashes
    round         0 < integer < 2^53
    attempt       0 <= integer < 2^32: which lead proposed it
    previous      id of the record of the round before; the run id in round 1
    base_state    state hash that the round began with
    state         state hash that the counted payloads lead to
    void          bool: nothing counts, the parameters stay
    counted       list, in record order, of {"peer": key, "payload": id, "weight": 0 to 32768}
    params_root   root of the parameters after the round, or ""
    closed_at_ms  0 <= integer < 2^53, the lead's clock; informative
    close_reason  "all-published", "target-reached", "round-over" or "nobody"

Guarantees: one byte string per content, and the types below hold values of the given form only.

Not done here: whether the content is right for its place in the chain (`record`).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.protocol import strict_json
from shoal.protocol.identity import KEY_BYTES, PeerId
from shoal.protocol.json_fields import (
    as_object,
    check_keys,
    take_bool,
    take_hex,
    take_int,
    take_list,
    take_text,
)
from shoal.protocol.signing import DIGEST_BYTES
from shoal.protocol.strict_json import INT_LIMIT, JsonValue

KIND: Final = "shoal/record/1"

_MAX_ATTEMPT: Final = 2**32 - 1
_KEYS: Final = frozenset(
    (
        "kind", "run", "manifest", "round", "attempt", "previous", "base_state", "state", "void",
        "counted", "params_root", "closed_at_ms", "close_reason",
    )
)  # fmt: skip
_COUNTED_KEYS: Final = frozenset(("peer", "payload", "weight"))
_KIND_PATTERN: Final = re.compile(re.escape(KIND))


class CloseReason(StrEnum):
    """Why the round was closed when it was."""

    ALL_PUBLISHED = "all-published"
    TARGET_REACHED = "target-reached"
    ROUND_OVER = "round-over"
    NOBODY = "nobody"


_REASON_PATTERN: Final = re.compile("|".join(CloseReason))


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedPayload:
    """One payload that counts, with its clip weight."""

    peer: PeerId
    payload_id: bytes
    """32 bytes."""
    weight: int
    """Q15: 32768 is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawEntry:
    """One entry of `counted` as the bytes say it."""

    peer_key: bytes
    payload_id: bytes
    weight: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRecord:
    """The content of a record; binding only inside a `VerifiedRecord`."""

    run_id: bytes
    manifest_hash: bytes
    round_id: int
    attempt: int
    previous: bytes
    base_state: bytes
    state: bytes
    void: bool
    counted: tuple[CountedPayload, ...]
    params_root: bytes
    """32 bytes, or empty in rounds without a checkpoint."""
    closed_at_ms: int
    close_reason: CloseReason


def pack_body(record: RoundRecord) -> bytes:
    """Write a record's body.

    Args:
        record: The content.

    Returns:
        Canonical JSON.

    Raises:
        LocalProtocolError: A value has no canonical form.
    """
    counted = [
        {"peer": one.peer.key.hex(), "payload": one.payload_id.hex(), "weight": one.weight}
        for one in record.counted
    ]
    fields: dict[str, object] = {
        "kind": KIND,
        "run": record.run_id.hex(),
        "manifest": record.manifest_hash.hex(),
        "round": record.round_id,
        "attempt": record.attempt,
        "previous": record.previous.hex(),
        "base_state": record.base_state.hex(),
        "state": record.state.hex(),
        "void": record.void,
        "counted": counted,
        "params_root": record.params_root.hex(),
        "closed_at_ms": record.closed_at_ms,
        "close_reason": record.close_reason.value,
    }
    return strict_json.dump(fields)


def unpack_body(body: bytes, max_bytes: int) -> tuple[tuple[RawEntry, ...], RoundRecord]:
    """Read a record's body; nobody is trusted.

    Who is counted stays apart, as the bytes say it, until the caller knows that the record belongs
    here: checking keys is the dearer step.

    Args:
        body: The bytes as received.
        max_bytes: Longest accepted body.

    Returns:
        The entries of `counted`, and the record with none.

    Raises:
        RemoteProtocolError: E_LEN, E_JSON and its kin.
    """
    fields = strict_json.load(body, max_bytes)
    check_keys(fields, _KEYS)
    take_text(fields, "kind", _KIND_PATTERN)
    entries = tuple(_to_entry(value) for value in take_list(fields, "counted"))
    return entries, RoundRecord(
        run_id=take_hex(fields, "run", DIGEST_BYTES),
        manifest_hash=take_hex(fields, "manifest", DIGEST_BYTES),
        round_id=take_int(fields, "round", 1, INT_LIMIT - 1),
        attempt=take_int(fields, "attempt", 0, _MAX_ATTEMPT),
        previous=take_hex(fields, "previous", DIGEST_BYTES),
        base_state=take_hex(fields, "base_state", DIGEST_BYTES),
        state=take_hex(fields, "state", DIGEST_BYTES),
        void=take_bool(fields, "void"),
        counted=(),
        params_root=take_hex(fields, "params_root", DIGEST_BYTES, empty=True),
        closed_at_ms=take_int(fields, "closed_at_ms", 0, INT_LIMIT - 1),
        close_reason=CloseReason(take_text(fields, "close_reason", _REASON_PATTERN)),
    )


def _to_entry(value: JsonValue) -> RawEntry:
    fields = as_object(value, "an entry of counted")
    check_keys(fields, _COUNTED_KEYS)
    return RawEntry(
        peer_key=take_hex(fields, "peer", KEY_BYTES),
        payload_id=take_hex(fields, "payload", DIGEST_BYTES),
        weight=take_int(fields, "weight", 1 - INT_LIMIT, INT_LIMIT - 1),
    )
