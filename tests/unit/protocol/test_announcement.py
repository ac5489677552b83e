from dataclasses import replace
from typing import Any

import pytest

from shoal.protocol.announcement import (
    MAX_ANNOUNCEMENT_BYTES,
    AnnouncementType,
    VerifiedAnnouncement,
    Where,
    build_announcement,
    read_announcement,
)
from shoal.protocol.envelope import MessageKind
from shoal.protocol.errors import AnnouncementError, ErrorCode, LocalProtocolError
from tests.unit.protocol.wire_builders import (
    ALICE,
    BOB,
    IDENTITY_POINT,
    MALLORY,
    ROUND,
    announcement_fields,
    announcement_of,
    code_of,
    payload_rules,
    seal_json,
)

RAW = build_announcement(ALICE, announcement_of())
FULL = Where(
    provider="r2",
    account="0123456789abcdef0123456789abcdef",
    bucket="shoal-run.peers",
    address="/ip6/2001:db8::1/tcp/4001/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5",
)
ATTENDING = announcement_of(type=AnnouncementType.ATTENDING, payload_id=b"", num_bytes=0)


def read(raw: bytes) -> VerifiedAnnouncement:
    return read_announcement(raw, payload_rules(), ROUND)


def read_code(raw: bytes) -> ErrorCode:
    return code_of(lambda: read(raw), AnnouncementError)


def sealed(signer: Any = ALICE, **changes: Any) -> bytes:
    return seal_json(announcement_fields(**changes), (signer,), MessageKind.ANNOUNCEMENT)


@pytest.mark.parametrize(
    "announcement", [announcement_of(), ATTENDING, announcement_of(where=FULL)]
)
def test_an_announcement_reads_back_as_it_was_built(announcement):
    verified = read(build_announcement(ALICE, announcement))
    assert verified.announcement == announcement
    assert verified.peer == ALICE.peer


def test_without_a_roster_anyone_may_announce():
    raw = build_announcement(MALLORY, announcement_of(MALLORY))
    rules = payload_rules(roster=None)
    assert read_announcement(raw, rules, ROUND).peer == MALLORY.peer


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", ErrorCode.E_LEN),
        (RAW[:-1], ErrorCode.E_LEN),
        (RAW + b" ", ErrorCode.E_LEN),
        (RAW + bytes(2000), ErrorCode.E_LEN),
        (b"SHOALPAY" + RAW[8:], ErrorCode.E_MAGIC),
        (seal_json(announcement_fields(), (ALICE, BOB), MessageKind.ANNOUNCEMENT), ErrorCode.E_LEN),
        (seal_json(announcement_fields(), (ALICE,), MessageKind.RECORD), ErrorCode.E_MAGIC),
        (sealed(run="00" * 32), ErrorCode.E_RUN),
        (sealed(round=ROUND - 1), ErrorCode.E_ROUND_OLD),
        (sealed(round=ROUND + 1), ErrorCode.E_ROUND_FUTURE),
        (sealed(peer=IDENTITY_POINT.hex()), ErrorCode.E_KEY_WEAK),
        (sealed(MALLORY, peer=MALLORY.peer.key.hex()), ErrorCode.E_PEER_UNKNOWN),
        (sealed(BOB), ErrorCode.E_SIG),
        (sealed(num_bytes=292), ErrorCode.E_LEN),
        (RAW[:60] + bytes([RAW[60] ^ 1]) + RAW[61:], ErrorCode.E_SIG),
    ],
    ids=[
        "empty", "truncated", "longer", "over 1 KiB", "another magic", "two signatures",
        "a record", "another run", "an earlier round", "a later round", "a weak key", "a stranger",
        "signed by another peer", "another payload length", "a flipped signature bit",
    ],
)  # fmt: skip
def test_a_bad_announcement_gives_its_code(raw, code):
    assert read_code(raw) is code


SHAPES: dict[str, dict[str, Any]] = {
    "another kind": {"kind": "shoal/record/1"},
    "a later kind": {"kind": "shoal/announcement/2"},
    "an unknown key": {"url": "https://example.org"},
    "an unknown type": {"type": "leaving"},
    "round zero": {"round": 0},
    "round as text": {"round": "8"},
    "round as bool": {"round": True},
    "a negative sequence": {"sequence": -1},
    "upper-case hex": {"run": "AA" * 32},
    "a short hash": {"payload": "ab" * 31},
    "attending with a payload": {"type": "attending"},
    "attending with a length": {"type": "attending", "payload": ""},
    "published without a payload": {"payload": ""},
    "published without a length": {"num_bytes": 0},
    "where as text": {"where": "run-store"},
    "where without a provider": {"where": {"bucket": "b"}},
    "where with an unknown key": {"where": {"provider": "s3", "url": "x"}},
    "where with an empty provider": {"where": {"provider": ""}},
    "where with an empty bucket": {"where": {"provider": "s3", "bucket": ""}},
    "where with a number": {"where": {"provider": "s3", "bucket": 1}},
    "an account with a slash": {
        "where": {"provider": "s3", "account": "169.254.169.254/aaaaaaaaaaaaaaaa"}
    },
    "an account with a dot": {"where": {"provider": "s3", "account": "169.254.169.254"}},
    "a bucket with a slash": {"where": {"provider": "s3", "bucket": "a/../b"}},
    "a bucket that begins with a dot": {"where": {"provider": "s3", "bucket": "..a"}},
    "a bucket with a line break": {"where": {"provider": "s3", "bucket": "a\n"}},
    "an address with a user": {"where": {"provider": "p2p", "address": "/ip4/u@1.2.3.4"}},
    "an address with a fragment": {"where": {"provider": "p2p", "address": "/ip4/1.2.3.4#"}},
    "an address with an accent": {"where": {"provider": "p2p", "address": "/dns/\u00e9"}},
    "an address that is too long": {"where": {"provider": "p2p", "address": "/" * 257}},
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_another_shape_is_refused(changes):
    assert read_code(sealed(**changes)) is ErrorCode.E_JSON


def test_a_missing_key_is_refused():
    for key in announcement_fields():
        fields = announcement_fields()
        del fields[key]
        raw = seal_json(fields, (ALICE,), MessageKind.ANNOUNCEMENT)
        assert read_code(raw) is ErrorCode.E_JSON


# In the order in which they are checked; `signer` and the rest are fields.
FAULTS: list[tuple[ErrorCode, dict[str, Any]]] = [
    (ErrorCode.E_JSON, {"sequence": -1}),
    (ErrorCode.E_RUN, {"run": "00" * 32}),
    (ErrorCode.E_ROUND_OLD, {"round": 1}),
    (ErrorCode.E_KEY_WEAK, {"peer": IDENTITY_POINT.hex()}),
    (ErrorCode.E_PEER_UNKNOWN, {"peer": MALLORY.peer.key.hex()}),
    (ErrorCode.E_SIG, {"signer": BOB}),
    (ErrorCode.E_LEN, {"num_bytes": 1}),
]


def test_of_two_faults_the_earlier_gives_the_code():
    for index, (code, first) in enumerate(FAULTS):
        for _, second in FAULTS[index + 1 :]:
            changes = {**second, **first}
            assert read_code(sealed(**changes)) is code, changes


def test_any_flipped_bit_of_an_accepted_announcement_is_refused():
    for bit in range(8 * len(RAW)):
        flipped = bytearray(RAW)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(AnnouncementError):
            read(bytes(flipped))


@pytest.mark.parametrize(
    "changes",
    [
        {"round_id": 0},
        {"run_id": b"short"},
        {"sequence": -1},
        {"num_bytes": 2**53},
        {"payload_id": b""},
        {"where": Where(provider="No Provider")},
        {"where": replace(FULL, bucket="a/b")},
    ],
    ids=str,
)
def test_building_what_readers_would_refuse_is_our_own_mistake(changes):
    with pytest.raises(LocalProtocolError):
        build_announcement(ALICE, announcement_of(**changes))


def test_announcing_for_another_peer_is_our_own_mistake():
    with pytest.raises(LocalProtocolError, match="signed by the peer"):
        build_announcement(BOB, announcement_of(ALICE))


def test_the_largest_announcement_fits():
    where = Where(provider="p" * 32, account="a" * 64, bucket="b" * 63, address="/" * 256)
    big = announcement_of(
        round_id=ROUND, sequence=2**53 - 1, num_bytes=payload_rules().body_bytes + 272, where=where
    )
    raw = build_announcement(ALICE, big)
    # What a longer round number and payload length could add.
    assert len(raw) + 15 + 13 <= MAX_ANNOUNCEMENT_BYTES
    assert read(raw).announcement == big


def test_a_verified_announcement_cannot_be_made_by_hand():
    with pytest.raises(LocalProtocolError):
        VerifiedAnnouncement(announcement=announcement_of(), peer=ALICE.peer, token=None)
