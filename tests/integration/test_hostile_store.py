"""Bad bytes in the store while a run goes on: a named refusal each, and nobody honest is harmed.

The attacker has a key on the roster that no node uses, and may write any file of the store.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from shoal.protocol.announcement import (
    MAX_ANNOUNCEMENT_BYTES,
    Announcement,
    AnnouncementType,
    Where,
    build_announcement,
)
from shoal.protocol.envelope import MessageKind, open_envelope, seal
from shoal.protocol.identity import Identity, from_seed
from shoal.protocol.payload import build_payload
from shoal.protocol.payload_header import PAYLOAD_PREFIX_BYTES, peek
from shoal.protocol.record import build_record
from tests.integration.test_kills import assert_all_equal, nodes_of
from tests.support.processes import Event, Forge, Node, all_ended, is_round, wait_until
from tests.support.tiny_run import TinyRun, make_tiny_run, replay

pytestmark = pytest.mark.slow

HONEST = ("validator", "peer-0", "peer-1")
HTML = b"<!DOCTYPE html><html><head><title>503 Slow Down</title></head><body>busy</body></html>"


@dataclass
class Attack:
    """One round, seen from the attacker's side."""

    run: TinyRun
    attacker: Identity
    round_id: int
    base_state: bytes
    body: bytes
    """Of an honest payload of an earlier round."""

    def payload(self, **changed: object) -> bytes:
        """A payload that would be accepted, unless `changed` says otherwise."""
        manifest = self.run.manifest
        fields: dict[str, object] = {
            "run_id": manifest.run_id,
            "manifest_hash": manifest.manifest_hash,
            "codec_value_bits": manifest.codec.value_bits,
            "round_id": self.round_id,
            "base_state": self.base_state,
            "inner_steps": 2,
            "tokens": 64,
            "body": self.body,
        }
        return build_payload(self.attacker, **{**fields, **changed})  # type: ignore[arg-type]  # a dict has one value type

    def announce(self, payload_id: bytes) -> None:
        """Signs and plants an announcement for the round."""
        announcement = Announcement(
            run_id=self.run.manifest.run_id,
            round_id=self.round_id,
            peer_key=self.attacker.peer.key,
            type=AnnouncementType.PUBLISHED,
            payload_id=payload_id,
            num_bytes=self.run.manifest.payload_bytes,
            sequence=self.round_id,
            where=Where(provider="run-store"),
        )
        self.plant_announcement(build_announcement(self.attacker, announcement))

    def plant_announcement(self, raw: bytes) -> None:
        """Puts bytes where the attacker's announcement belongs."""
        self.run.plant(self.run.keys.published(self.round_id, self.attacker.peer), raw)

    def publish(self, raw: bytes, announced: bytes | None = None) -> None:
        """Plants bytes as the round's payload, and announces (another) payload's id."""
        self.run.plant(self.run.keys.payload(self.round_id, self.attacker.peer), raw)
        self.announce(peek(announced or raw).payload_id)


def flipped_bit(attack: Attack) -> None:
    raw = bytearray(attack.payload())
    raw[PAYLOAD_PREFIX_BYTES + 7] ^= 1
    attack.publish(bytes(raw), attack.payload())


def truncated(attack: Attack) -> None:
    attack.publish(attack.payload()[:-1], attack.payload())


def extended(attack: Attack) -> None:
    attack.publish(attack.payload() + b"\0", attack.payload())


def html_page(attack: Attack) -> None:
    attack.publish(HTML, attack.payload())


def empty(attack: Attack) -> None:
    attack.publish(b"", attack.payload())


def padded_pickle(attack: Attack) -> None:
    raw = b"cos\nsystem\n(S'touch pwned'\ntR.".ljust(attack.run.manifest.payload_bytes, b"\0")
    attack.publish(raw, attack.payload())


def garbage_announcement(attack: Attack) -> None:
    attack.plant_announcement(os.urandom(300))


def html_announcement(attack: Attack) -> None:
    attack.plant_announcement(HTML)


def huge_announcement(attack: Attack) -> None:
    attack.plant_announcement(b"\0" * (1 << 20))


def copied_announcement(attack: Attack) -> None:
    """An honest peer's announcement of the round before, under the attacker's key."""
    honest = attack.run.identities["peer-0"].peer
    key = attack.run.keys.published(attack.round_id - 1, honest)
    attack.plant_announcement(attack.run.object_file(key).read_bytes())


def stolen_announcement(attack: Attack) -> None:
    """Says that it is an honest peer's, signed by the attacker."""
    honest = attack.run.identities["peer-0"].peer
    key = attack.run.keys.published(attack.round_id - 1, honest)
    raw = attack.run.object_file(key).read_bytes()
    envelope = open_envelope(
        raw, MessageKind.ANNOUNCEMENT, max_bytes=MAX_ANNOUNCEMENT_BYTES, max_signatures=1
    )
    old, new = (f'"round":{r}'.encode() for r in (attack.round_id - 1, attack.round_id))
    assert old in envelope.body
    body = envelope.body.replace(old, new)
    attack.plant_announcement(seal(MessageKind.ANNOUNCEMENT, body, (attack.attacker,)))


def replayed_payload(attack: Attack) -> None:
    attack.publish(attack.payload(round_id=attack.round_id - 1))


def payload_of_the_future(attack: Attack) -> None:
    attack.publish(attack.payload(round_id=attack.round_id + 1))


def payload_of_another_run(attack: Attack) -> None:
    attack.publish(attack.payload(run_id=bytes(32)))


def payload_of_another_manifest(attack: Attack) -> None:
    attack.publish(attack.payload(manifest_hash=bytes(32)))


def payload_of_another_state(attack: Attack) -> None:
    attack.publish(attack.payload(base_state=bytes(32)))


def payload_that_is_not_the_announced_one(attack: Attack) -> None:
    attack.publish(attack.payload(), attack.payload(tokens=65))


def payload_of_all_ones(attack: Attack) -> None:
    attack.publish(attack.payload(body=b"\xff" * len(attack.body)))


def another_peers_payload(attack: Attack) -> None:
    """An honest peer's signed payload under the attacker's name."""
    honest = attack.run.identities["peer-0"].peer
    key = attack.run.keys.payload(attack.round_id - 1, honest)
    attack.publish(attack.run.object_file(key).read_bytes(), attack.payload())


ATTACKS: dict[Callable[[Attack], None], set[str]] = {
    flipped_bit: {"E_BODY_HASH"},
    truncated: {"E_LEN"},
    extended: {"E_LEN"},
    html_page: {"E_LEN"},
    empty: {"E_LEN"},
    padded_pickle: {"E_MAGIC"},
    garbage_announcement: {"E_MAGIC"},
    html_announcement: {"E_MAGIC", "E_LEN"},
    huge_announcement: {"E_LEN"},
    copied_announcement: {"E_ROUND_OLD", "E_OBJECT_KEY"},
    stolen_announcement: {"E_SIG", "E_OBJECT_KEY"},
    replayed_payload: {"E_ROUND_OLD"},
    payload_of_the_future: {"E_ROUND_FUTURE"},
    payload_of_another_run: {"E_RUN"},
    payload_of_another_manifest: {"E_MANIFEST"},
    payload_of_another_state: {"E_PARENT"},
    payload_that_is_not_the_announced_one: {"E_EQUIVOCATION"},
    payload_of_all_ones: {
        "E_INDEX_RANGE", "E_SCALE_NONFINITE", "E_SCALE_SIGN", "E_SCALE_RANGE", "E_PADDING",
        "E_EMPTY_CHUNK",
    },
    another_peers_payload: {"E_ROUND_OLD"},
}  # fmt: skip


def test_every_kind_of_bad_bytes_is_refused_by_name_and_the_rounds_go_on(
    forge: Forge, tmp_path: Path
) -> None:
    num_rounds = 2 * len(ATTACKS) + 4
    run = make_tiny_run(tmp_path, num_peers=3, num_rounds=num_rounds, min_peers=2)
    nodes = nodes_of(forge, run, *HONEST)
    attacker = run.identities["peer-2"]
    expected: dict[int, tuple[str, set[str]]] = {}
    first, held_back = nodes[0], nodes[2]
    with all_ended(*nodes):
        for node in nodes:
            node.start()
        first.wait_for(is_round(1))
        for act, codes in ATTACKS.items():
            # With min_peers = 2 a round stays open while one of the two honest peers is stopped.
            held_back.send(signal.SIGSTOP)
            round_id = open_round(run, first, held_back)
            plant(run, first, attacker, round_id, act)
            expected[round_id] = (act.__name__, codes)
            first.wait_for(refusal(round_id, attacker))
            held_back.send(signal.SIGCONT)
            first.wait_for(is_round(round_id))
        assert_all_equal(run, nodes)
    assert len(expected) == len(ATTACKS)
    for round_id, (name, codes) in expected.items():
        found = [e for e in nodes[0].events("payload-rejected") if e["round_id"] == round_id]
        assert {e["code"] for e in found} <= codes, name
        assert {e["peer"] for e in found} == {attacker.peer.key.hex()}, name
    for verified in replay(run).records:
        counted = {entry.peer for entry in verified.record.counted}
        assert attacker.peer not in counted
        assert counted
    assert not list(Path.cwd().glob("pwned"))


def open_round(run: TinyRun, first: Node, held_back: Node) -> int:
    """The round that stays open because `held_back` is stopped and has not published for it."""
    peer = run.identities[held_back.name].peer

    def current() -> int:
        round_id: int = first.events("round-opened")[-1]["round_id"]
        return round_id

    def is_open() -> bool:
        return not run.object_file(run.keys.published(current(), peer)).exists()

    wait_until(is_open, "a round that waits for the stopped peer")
    return current()


def plant(
    run: TinyRun, first: Node, attacker: Identity, round_id: int, act: Callable[[Attack], None]
) -> None:
    body = run.object_file(run.keys.payload(1, run.identities["peer-0"].peer)).read_bytes()
    (before,) = [e for e in first.events("round") if e["round_id"] == round_id - 1]
    state = bytes.fromhex(before["state_hash"])
    act(Attack(run, attacker, round_id, state, body[PAYLOAD_PREFIX_BYTES:]))


def refusal(round_id: int, attacker: Identity) -> Callable[[Event], bool]:
    def is_refusal(event: Event) -> bool:
        wanted = ("payload-rejected", round_id, attacker.peer.key.hex())
        return event["event"] == wanted[0] and (event["round_id"], event["peer"]) == wanted[1:]

    return is_refusal


def test_what_is_not_a_record_of_the_validator_is_refused_and_replaced(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=3, num_rounds=9)
    nodes = nodes_of(forge, run, *HONEST)
    stranger = from_seed(b"x" * 32)
    with all_ended(*nodes):
        # Before anybody runs: garbage under the keys of rounds 1 to 4, and a flood of names.
        garbage = (b"", HTML, os.urandom(400), b"\0" * (2 << 20))
        for round_id, raw in enumerate(garbage, start=1):
            run.plant(run.keys.record(round_id), raw)
        flood = [f"{i:064x}" for i in range(300)]
        for name in flood:
            run.plant(run.keys.published_prefix(2) + name, b"flood")
            run.plant(run.keys.attending_prefix(2) + name, b"flood")
        for node in nodes:
            node.start()
        nodes[0].wait_for(is_round(4))
        for node in nodes:
            assert node.kill()
        # A record of the next round that is right in everything but the signature, and an old one.
        done = nodes[0].events("round")[-1]["round_id"]
        for node in nodes[1:]:
            assert abs(node.events("round")[-1]["round_id"] - done) <= 1
        last = replay(run, done).records[-1]
        forged = replace(
            last.record,
            round_id=done + 1,
            previous=last.head.record_id,
            base_state=last.record.state,
            state=bytes(32),
        )
        run.plant(run.keys.record(done + 1), build_record(forged, (stranger,)))
        old = run.object_file(run.keys.record(done)).read_bytes()
        run.plant(run.keys.record(done + 2), old)
        for node in nodes:
            node.start()
        assert_all_equal(run, nodes)
    refused = {e["round_id"]: e["code"] for e in nodes[0].events("record-rejected")}
    assert set(refused) == {1, 2, 3, 4, done + 1, done + 2}
    assert refused[1] == refused[4] == "E_LEN"
    assert refused[2] in ("E_MAGIC", "E_LEN")
    assert refused[3] == "E_MAGIC"
    assert refused[done + 1] in ("E_QUORUM", "E_SIG", "E_PEER_UNKNOWN")
    assert refused[done + 2] in ("E_ROUND_OLD", "E_ROLLBACK")
    assert replay(run).records[1].record.counted, "the flood kept the honest out of round 2"
