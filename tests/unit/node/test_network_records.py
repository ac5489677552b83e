"""The rules of the DHT's records, against a model of what a node has seen."""

import dataclasses
import hashlib
import math
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from shoal.node.network import dht_records, signed_records
from shoal.node.network.dht_records import (
    ATTENDING_KIND,
    KINDS,
    PEER_KIND,
    POINTER_KIND,
    PUBLISHED_KIND,
    RecordRules,
    location,
    read_record,
    record_key,
    unwrap_value,
)
from shoal.node.network.object_ids import clock_id, known_peers_id, record_object_id
from shoal.node.network.signed_records import (
    MAX_RECORD_BYTES,
    PeerRecord,
    RecordPointer,
    SignedKind,
)
from shoal.protocol.announcement import (
    Announcement,
    AnnouncementType,
    Where,
    build_announcement,
)
from shoal.protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from shoal.protocol.identity import Identity, from_seed

RUN_ID = bytes(range(32))
OTHER_RUN_ID = bytes(32)
START_S = 1_800_000_000
ROUND_S = 60
AHEAD_S = 2 * ROUND_S
ANNOUNCED = (ATTENDING_KIND, PUBLISHED_KIND)
PEERS = tuple(from_seed(bytes([number]) * 32) for number in range(1, 4))
LIBP2P_ID = "QmSW7TgokpiETjXFxzh9GbEJQeTDfJ5fWr24p7o2fGjdZK"


def make(
    kind: str,
    who: Identity,
    sequence: int,
    expires_at_s: int,
    *,
    run_id: bytes = RUN_ID,
    variant: int = 0,
) -> bytes:
    """A record of any kind; the variant makes another body."""
    if kind in ANNOUNCED:
        published = kind == PUBLISHED_KIND
        return build_announcement(
            who,
            Announcement(
                run_id=run_id,
                round_id=1 + variant,
                peer_key=who.peer.key,
                type=AnnouncementType.PUBLISHED if published else AnnouncementType.ATTENDING,
                payload_id=bytes(32) if published else b"",
                num_bytes=9 if published else 0,
                sequence=sequence,
                where=Where(provider="p2p"),
            ),
        )
    common: dict[str, Any] = {
        "run_id": run_id,
        "peer_key": who.peer.key,
        "sequence": sequence,
        "expires_at_s": expires_at_s,
    }
    if kind == PEER_KIND:
        places = (f"/ip4/192.0.2.{variant}/tcp/4001",)
        return signed_records.build(
            who, PeerRecord(**common, libp2p_id=LIBP2P_ID, addresses=places)
        )
    return signed_records.build(
        who, RecordPointer(**common, round_id=1 + variant, record_sha256=bytes(32), num_bytes=7)
    )


def place_of(kind: str, who: Identity, run_id: bytes = RUN_ID) -> bytes:
    return location(record_key(run_id, who.peer, kind))


def rules_at(now_s: float = START_S, **changes: object) -> RecordRules:
    values: dict[str, object] = {
        "run_id": RUN_ID,
        "max_ahead_s": AHEAD_S,
        "now_s": lambda: now_s,
        **changes,
    }
    return RecordRules(**values)  # type: ignore[arg-type] # by name


def code_of(rules: RecordRules, place: bytes, value: bytes, expires_at_s: float) -> str:
    """The code of the refusal; empty if it passes."""
    try:
        rules.check(place, value, expires_at_s)
    except RemoteProtocolError as error:
        return error.code
    return ""


@dataclasses.dataclass(frozen=True)
class Made:
    """A record as its peer made it."""

    kind: str
    who: Identity
    sequence: int
    expires_at_s: int
    variant: int
    value: bytes

    @property
    def place(self) -> bytes:
        return place_of(self.kind, self.who)

    @property
    def signed_expiry_s(self) -> int | None:
        return None if self.kind in ANNOUNCED else self.expires_at_s


class RecordMachine(RuleBasedStateMachine):
    """Peers publish; anybody stores anything that was ever published, in any order, at any time."""

    records = Bundle("records")

    @initialize()
    def begin(self) -> None:
        self.now_s = float(START_S)
        self.node = RecordRules(run_id=RUN_ID, max_ahead_s=AHEAD_S, now_s=lambda: self.now_s)
        self.known: dict[bytes, Made] = {}
        self.num_accusations = 0

    @rule(
        target=records,
        kind=st.sampled_from(KINDS),
        who=st.sampled_from(PEERS),
        sequence=st.integers(0, 6),
        life_s=st.integers(1, 4 * AHEAD_S),
        variant=st.integers(0, 1),
    )
    def make(self, kind: str, who: Identity, sequence: int, life_s: int, variant: int) -> Made:
        expires_at_s = int(self.now_s) + life_s
        value = make(kind, who, sequence, expires_at_s, variant=variant)
        return Made(kind, who, sequence, expires_at_s, variant, value)

    @rule(target=records, first=records, who=st.sampled_from(PEERS))
    def forge(self, first: Made, who: Identity) -> object:
        # The key of another peer in the place where the signer's is.
        head = len(b"SHOALDHT") + 4
        if first.kind in ANNOUNCED or who.peer == first.who.peer:
            return multiple()
        value = first.value[:head] + who.peer.key + first.value[head + 32 :]
        assert code_of(self.node, first.place, value, self.now_s + 1) == ErrorCode.E_SIG
        return multiple()

    @rule(record=records)
    def store(self, record: Made) -> None:
        self.offer(record, record.place, record.expires_at_s)

    @rule(record=records, delta_s=st.integers(-AHEAD_S, 3 * AHEAD_S))
    def store_with_another_expiry(self, record: Made, delta_s: int) -> None:
        self.offer(record, record.place, record.expires_at_s + delta_s)

    @rule(record=records, other=records)
    def store_under_another_key(self, record: Made, other: Made) -> None:
        self.offer(record, other.place, record.expires_at_s)

    @rule(record=records, at=st.integers(0, 5000), flip=st.integers(1, 255))
    def store_damaged(self, record: Made, at: int, flip: int) -> None:
        value = bytearray(record.value)
        value[at % len(value)] ^= flip
        before = dict(self.node._known)
        expires_at_s = min(record.expires_at_s, int(self.now_s) + AHEAD_S)
        assert code_of(self.node, record.place, bytes(value), expires_at_s) != ""
        assert self.node._known == before

    @rule(seconds=st.integers(1, AHEAD_S))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    def offer(self, record: Made, place: bytes, expires_at_s: int) -> None:
        expected = self.expect(record, place, expires_at_s)
        assert code_of(self.node, place, record.value, expires_at_s) == expected
        if expected == "":
            self.known[place] = record
        self.num_accusations += expected == ErrorCode.E_EQUIVOCATION

    def expect(self, record: Made, place: bytes, expires_at_s: int) -> str:
        known = self.known.get(place)
        if place != record.place:
            return ErrorCode.E_OBJECT_KEY
        if expires_at_s > self.now_s + AHEAD_S:
            return ErrorCode.E_DHT_EXPIRY_FAR
        if expires_at_s <= self.now_s:
            return ErrorCode.E_ROLLBACK
        if known is not None and record.sequence < known.sequence:
            return ErrorCode.E_ROLLBACK
        if record.signed_expiry_s not in {None, expires_at_s}:
            return ErrorCode.E_SIG
        if known is None or record.sequence > known.sequence:
            return ""
        same = (record.variant, record.signed_expiry_s) == (known.variant, known.signed_expiry_s)
        return "" if same else ErrorCode.E_EQUIVOCATION

    @invariant()
    def every_accusation_is_kept_with_both_records(self) -> None:
        found = self.node.equivocations
        assert len(found) == min(self.num_accusations, dht_records.MAX_EVIDENCE)
        for one in found:
            first, second = read_record(one.first), read_record(one.second)
            first.verify()
            second.verify()
            assert first.peer == second.peer == one.peer
            assert first.sequence == second.sequence
            assert first.body != second.body


RecordMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_what_a_node_takes = RecordMachine.TestCase


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_passes_and_may_come_again(kind: str) -> None:
    rules = rules_at()
    value = make(kind, PEERS[0], 5, START_S + ROUND_S)
    for _ in range(2):
        record = rules.check(place_of(kind, PEERS[0]), value, START_S + ROUND_S)
        assert (record.kind, record.peer, record.sequence) == (kind, PEERS[0].peer, 5)


@pytest.mark.parametrize("expires_at_s", [math.inf, math.nan, START_S + AHEAD_S + 0.5])
def test_an_expiry_too_far_ahead_or_no_number_is_refused(expires_at_s: float) -> None:
    value = make(PUBLISHED_KIND, PEERS[0], 5, 0)
    code = code_of(rules_at(), place_of(PUBLISHED_KIND, PEERS[0]), value, expires_at_s)
    assert code == ErrorCode.E_DHT_EXPIRY_FAR


def test_an_expiry_of_exactly_two_rounds_passes() -> None:
    value = make(PUBLISHED_KIND, PEERS[0], 5, 0)
    assert code_of(rules_at(), place_of(PUBLISHED_KIND, PEERS[0]), value, START_S + AHEAD_S) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_another_runs_record_is_refused(kind: str) -> None:
    value = make(kind, PEERS[0], 5, START_S + 9, run_id=OTHER_RUN_ID)
    place = place_of(kind, PEERS[0], OTHER_RUN_ID)
    assert code_of(rules_at(), place, value, START_S + 9) == ErrorCode.E_RUN


def test_a_key_outside_the_roster_is_refused() -> None:
    rules = rules_at(roster=frozenset({PEERS[0].peer}))
    for who, code in ((PEERS[0], ""), (PEERS[1], ErrorCode.E_PEER_UNKNOWN)):
        value = make(POINTER_KIND, who, 5, START_S + 9)
        assert code_of(rules, place_of(POINTER_KIND, who), value, START_S + 9) == code


@given(st.integers(MAX_RECORD_BYTES + 1, 5000))
def test_a_value_above_one_kib_is_refused_unread(num_bytes: int) -> None:
    code = code_of(rules_at(), bytes(20), b"SHOALMSG" + bytes(num_bytes - 8), START_S + 9)
    assert code == ErrorCode.E_LEN


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(b"SHOALDHT".__add__)))
def test_any_bytes_are_refused_with_a_code(raw: bytes) -> None:
    assert code_of(rules_at(), bytes(20), raw, START_S + 9) in set(ErrorCode)


def test_a_full_table_takes_no_new_peer_until_others_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dht_records, "MAX_PEERS", 1)
    now_s = float(START_S)
    rules = RecordRules(run_id=RUN_ID, max_ahead_s=AHEAD_S, now_s=lambda: now_s)
    for kind in KINDS:
        assert (
            code_of(
                rules, place_of(kind, PEERS[0]), make(kind, PEERS[0], 1, START_S + 9), START_S + 9
            )
            == ""
        )
    newcomer = place_of(PUBLISHED_KIND, PEERS[1])
    value = make(PUBLISHED_KIND, PEERS[1], 1, 0)
    assert code_of(rules, newcomer, value, START_S + 9) == ErrorCode.E_PEER_UNKNOWN
    # Those that are known can go on.
    assert (
        code_of(
            rules,
            place_of(PUBLISHED_KIND, PEERS[0]),
            make(PUBLISHED_KIND, PEERS[0], 2, 0),
            START_S + 9,
        )
        == ""
    )
    now_s += AHEAD_S + 1
    assert code_of(rules, newcomer, value, now_s + 9) == ""


def test_keys_differ_by_run_peer_and_kind() -> None:
    keys = {
        record_key(run_id, who.peer, kind)
        for run_id in (RUN_ID, OTHER_RUN_ID)
        for who in PEERS
        for kind in KINDS
    }
    assert len(keys) == 2 * len(PEERS) * len(KINDS)
    assert {len(key) for key in keys} == {32}


def test_what_readers_would_refuse_is_not_built() -> None:
    long = tuple(f"/ip4/192.0.2.1/tcp/{port}" for port in range(9))
    common: dict[str, Any] = {
        "run_id": RUN_ID,
        "peer_key": PEERS[0].peer.key,
        "sequence": 1,
        "expires_at_s": 1,
    }
    for places in (long, ("no address",), ("/" + "a" * 120,) * 8):
        with pytest.raises(LocalProtocolError):
            signed_records.build(
                PEERS[0], PeerRecord(**common, libp2p_id=LIBP2P_ID, addresses=places)
            )
    theirs = RecordPointer(**common, round_id=1, record_sha256=bytes(32), num_bytes=7)
    with pytest.raises(LocalProtocolError, match="by the peer"):
        signed_records.build(PEERS[1], theirs)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda raw: b"X" + raw[1:], ErrorCode.E_MAGIC),
        (lambda raw: raw[:8] + b"\x02\x00" + raw[10:], ErrorCode.E_VERSION),
        (lambda raw: raw[:10] + b"\x09\x00" + raw[12:], ErrorCode.E_MAGIC),
        (lambda raw: raw[:10] + b"\x02\x00" + raw[12:], ErrorCode.E_JSON),
        (lambda raw: raw[:50], ErrorCode.E_LEN),
        (lambda raw: raw[:-1], ErrorCode.E_JSON),
        (lambda raw: raw + b" ", ErrorCode.E_JSON),
    ],
)
def test_a_damaged_statement_gives_its_code(damage: Callable[[bytes], bytes], code: str) -> None:
    raw = make(PEER_KIND, PEERS[0], 1, START_S + 9)
    with pytest.raises(RemoteProtocolError) as caught:
        signed_records.read(damage(raw))
    assert caught.value.code == code


def test_a_signature_for_one_kind_is_void_for_the_other() -> None:
    assert SignedKind.PEER.domain != SignedKind.POINTER.domain
    raw = make(PEER_KIND, PEERS[0], 1, START_S + 9)
    signed = signed_records.read(raw)
    signed_records.verify(signed)
    with pytest.raises(RemoteProtocolError):
        signed_records.verify(dataclasses.replace(signed, kind=SignedKind.POINTER))


@given(st.binary(max_size=1100))
def test_only_the_one_msgpack_form_is_unwrapped(data: bytes) -> None:
    assert unwrap_value(msgpack.packb(data)) == data
    assert unwrap_value(msgpack.packb(data) + b"x") is None
    assert unwrap_value(b"\xc5" + len(data).to_bytes(2, "big") + data) == (
        data if len(data) > 255 else None
    )
    assert unwrap_value(msgpack.packb([data])) is None


def test_the_bytes_of_a_pointer_and_of_keys_and_ids_never_change() -> None:
    who = PEERS[0]
    pointer = RecordPointer(
        run_id=RUN_ID,
        peer_key=who.peer.key,
        sequence=9,
        expires_at_s=START_S + ROUND_S,
        round_id=7,
        record_sha256=bytes(range(32, 64)),
        num_bytes=512,
    )
    raw = signed_records.build(who, pointer)
    assert len(raw) == 427
    assert hashlib.sha256(raw).hexdigest() == (
        "3d0bb07c876fe23355f2e43eb08a6a3b94044e217779f1eedba4ad95cc010629"
    )
    assert signed_records.read(raw).statement == pointer
    assert [record_key(RUN_ID, who.peer, kind).hex()[:16] for kind in KINDS] == [
        "70ea3a7f74270e49",
        "c9458c56fa297c10",
        "cd3e936ea79f9aa4",
        "58585329b599a104",
    ]
    ids = record_object_id(RUN_ID, 7), known_peers_id(RUN_ID), clock_id(RUN_ID)
    assert [object_id.hex()[:16] for object_id in ids] == [
        "46bd2914b8b68298",
        "43890cf978023b24",
        "8575691778ff3251",
    ]


def test_the_peers_whose_records_passed_are_known_until_those_are_over() -> None:
    now_s = float(START_S)
    rules = RecordRules(run_id=RUN_ID, max_ahead_s=AHEAD_S, now_s=lambda: now_s)
    for number, who in enumerate(PEERS):
        now_s += number
        for kind in (PEER_KIND, PUBLISHED_KIND):
            rules.check(place_of(kind, who), make(kind, who, 1, START_S + 50), START_S + 50)
    assert rules.peers() == tuple(who.peer for who in reversed(PEERS))
    now_s += AHEAD_S
    assert rules.peers() == ()
