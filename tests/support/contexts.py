"""A node's context over any store and clock, and the objects that peers put into the store."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.node.clock import Clock
from shoal.node.run_context import RunContext, make_context
from shoal.node.telemetry.event_log import EventLog
from shoal.protocol.announcement import Announcement, AnnouncementType, Where, build_announcement
from shoal.protocol.chain import ChainHead
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import RunManifest
from shoal.protocol.payload_header import (
    HEADER_BYTES,
    PayloadHeader,
    expected_payload_bytes,
    payload_id,
)
from shoal.protocol.signing import Domain, sign
from shoal.storage.meter import Meter
from shoal.storage.object_store import ObjectStore


def context_of(
    manifest: RunManifest, identity: Identity, store: ObjectStore, clock: Clock, log: Path
) -> RunContext:
    return make_context(
        manifest,
        identity,
        store,
        meter=Meter(clock.now_s),
        clock=clock,
        log=EventLog(log, clock.now_s),
    )


def header_for(
    manifest: RunManifest, head: ChainHead, identity: Identity, body: bytes, **changes: Any
) -> PayloadHeader:
    header = PayloadHeader(
        codec=manifest.codec.value_bits,
        run_id=manifest.run_id,
        manifest_hash=manifest.manifest_hash,
        round_id=head.round_id + 1,
        peer_key=identity.peer.key,
        base_state=head.state,
        inner_steps=1,
        tokens=100,
        body_len=len(body),
        body_sha256=hashlib.sha256(body).digest(),
    )
    return replace(header, **changes)


def payload_for(
    manifest: RunManifest, head: ChainHead, identity: Identity, body: bytes, **changes: Any
) -> bytes:
    """A signed payload of the round after `head`, whatever its header says."""
    header = header_for(manifest, head, identity, body, **changes).pack()
    return header + sign(identity, Domain.PAYLOAD, header) + body


def id_of(payload: bytes) -> bytes:
    return payload_id(payload[:HEADER_BYTES])


def announcement_for(
    manifest: RunManifest, head: ChainHead, identity: Identity, payload: bytes, **changes: Any
) -> bytes:
    announcement = Announcement(
        run_id=manifest.run_id,
        round_id=head.round_id + 1,
        peer_key=identity.peer.key,
        type=AnnouncementType.PUBLISHED,
        payload_id=id_of(payload),
        num_bytes=expected_payload_bytes(manifest.limits.body_bytes),
        sequence=1,
        where=Where(provider="run-store"),
    )
    return build_announcement(identity, replace(announcement, **changes))


def attending_for(manifest: RunManifest, head: ChainHead, identity: Identity) -> bytes:
    nothing = {"type": AnnouncementType.ATTENDING, "payload_id": b"", "num_bytes": 0}
    return announcement_for(manifest, head, identity, bytes(HEADER_BYTES), **nothing)
