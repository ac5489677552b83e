"""Valid and deliberately broken payloads, announcements and records for the wire tests."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shoal.protocol import announcement as announcements
from shoal.protocol import payload as payloads
from shoal.protocol import record as records
from shoal.protocol.announcement import Announcement, AnnouncementType, Where
from shoal.protocol.envelope import MessageKind, seal
from shoal.protocol.errors import ErrorCode
from shoal.protocol.identity import Identity, from_seed
from shoal.protocol.payload import PayloadContext, PayloadHeader, PayloadRules
from shoal.protocol.record import ChainHead, CountedPayload, RecordRules, RoundRecord
from shoal.protocol.signing import Domain, sign

RUN = bytes(range(32))
MANIFEST = bytes(range(32, 64))
STATE = bytes(range(64, 96))
BODY = b"a body of 21 bytes ok"
ROUND = 8
IDENTITY_POINT = b"\1" + bytes(31)

ALICE, BOB, CAROL, MALLORY = (from_seed(bytes([n]) * 32) for n in range(1, 5))
VALIDATORS = tuple(from_seed(bytes([n]) * 32) for n in range(11, 15))
PEERS = frozenset(identity.peer for identity in (ALICE, BOB, CAROL))

Payload = payloads.Payload[bytes]


def payload_rules(**changes: Any) -> PayloadRules:
    rules = PayloadRules(
        run_id=RUN,
        manifest_hash=MANIFEST,
        codec_value_bits=2,
        body_bytes=len(BODY),
        roster=PEERS,
        max_inner_steps=15,
    )
    return replace(rules, **changes)


def payload_context(**changes: Any) -> PayloadContext[bytes]:
    context = PayloadContext(round_id=ROUND, base_state=STATE, seen={}, check_body=bytes)
    return replace(context, **changes)


def header_of(identity: Identity = ALICE, body: bytes = BODY, **changes: Any) -> PayloadHeader:
    header = PayloadHeader(
        codec=2,
        run_id=RUN,
        manifest_hash=MANIFEST,
        round_id=ROUND,
        peer_key=identity.peer.key,
        base_state=STATE,
        inner_steps=15,
        tokens=30_000,
        body_len=len(body),
        body_sha256=hashlib.sha256(body).digest(),
    )
    return replace(header, **changes)


def signed_header(
    header: PayloadHeader, identity: Identity = ALICE, domain: Domain = Domain.PAYLOAD
) -> bytes:
    """Sign any header, also one that names another key."""
    raw = header.pack()
    return raw + sign(identity, domain, raw)


def make_payload(identity: Identity = ALICE, body: bytes = BODY, **changes: Any) -> bytes:
    return signed_header(header_of(identity, body, **changes), identity) + body


def check(raw: bytes, **changes: Any) -> Payload:
    return payloads.validate(raw, payload_rules(), payload_context(**changes))


def announcement_of(identity: Identity = ALICE, **changes: Any) -> Announcement:
    announcement = Announcement(
        run_id=RUN,
        round_id=ROUND,
        peer_key=identity.peer.key,
        type=AnnouncementType.PUBLISHED,
        payload_id=bytes(range(100, 132)),
        num_bytes=payloads.expected_payload_bytes(len(BODY)),
        sequence=3,
        where=Where(provider="run-store"),
    )
    return replace(announcement, **changes)


def announcement_fields(**changes: Any) -> dict[str, Any]:
    raw = announcements.build_announcement(ALICE, announcement_of())
    fields: dict[str, Any] = json.loads(raw[116:])
    return fields | changes


def seal_json(fields: dict[str, Any], identities: tuple[Identity, ...], kind: MessageKind) -> bytes:
    """Seal fields in canonical form, whatever they say."""
    body = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return seal(kind, body, identities)


HEAD = ChainHead(round_id=ROUND - 1, record_id=bytes([7]) * 32, state=STATE)


def record_rules(**changes: Any) -> RecordRules:
    rules = RecordRules(
        run_id=RUN,
        manifest_hash=MANIFEST,
        validators=tuple(validator.peer for validator in VALIDATORS),
        threshold=3,
        gather_limit=3,
        roster=PEERS,
        max_bytes=8192,
    )
    return replace(rules, **changes)


def counted_of(identity: Identity, number: int, weight: int = 32768) -> CountedPayload:
    return CountedPayload(peer=identity.peer, payload_id=bytes([number]) * 32, weight=weight)


def record_of(**changes: Any) -> RoundRecord:
    record = RoundRecord(
        run_id=RUN,
        manifest_hash=MANIFEST,
        round_id=ROUND,
        attempt=0,
        previous=HEAD.record_id,
        base_state=HEAD.state,
        state=bytes([9]) * 32,
        void=False,
        counted=(counted_of(BOB, 101), counted_of(ALICE, 102, 20_000)),
        params_root=b"",
        closed_at_ms=1_700_000_000_000,
        close_reason=records.CloseReason.ALL_PUBLISHED,
    )
    return replace(record, **changes)


def void_record(**changes: Any) -> RoundRecord:
    state = records.void_state(RUN, ROUND, HEAD.state)
    reason = records.CloseReason.NOBODY
    return record_of(void=True, counted=(), state=state, close_reason=reason, **changes)


def make_record(record: RoundRecord | None = None, num_signers: int = 3) -> bytes:
    return records.build_record(record or record_of(), VALIDATORS[:num_signers])


def record_fields(**changes: Any) -> dict[str, Any]:
    raw = make_record(num_signers=1)
    fields: dict[str, Any] = json.loads(raw[116:])
    return fields | changes


def code_of(call: Callable[[], object], kind: type[Exception]) -> ErrorCode:
    """The code that a call is refused with; any other outcome fails the test."""
    try:
        result = call()
    except kind as error:
        code = getattr(error, "code", None)
        assert isinstance(code, ErrorCode)
        return code
    raise AssertionError(f"expected a refusal, found {result!r}")
