"""Twenty large, valid payloads and the run that they belong to."""

from dataclasses import dataclass

import numpy as np

from shoal.compression import BodyLayout, ErrorFeedback
from shoal.node.run_context import make_spec
from shoal.node.store_keys import StoreKeys
from shoal.protocol.announcement import Announcement, AnnouncementType, Where, build_announcement
from shoal.protocol.chain import ChainHead, genesis_head
from shoal.protocol.identity import Identity, from_seed
from shoal.protocol.manifest import (
    AdmissionSection,
    BlobSection,
    CodecSection,
    DataSection,
    GenesisSection,
    LimitsSection,
    ModelSection,
    OuterSection,
    RunManifest,
    RunSection,
    TensorSection,
    TimingSection,
    TrainingSection,
    ValidatorsSection,
)
from shoal.protocol.payload import build_payload
from shoal.protocol.payload_header import HEADER_BYTES, payload_id

PROVIDER = "bench"
_CHUNK = 4096
_PATTERN_CHUNKS = 512


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer's payload and its announcement."""

    identity: Identity
    raw: bytes
    announcement: bytes


def make_manifest(payload_bytes: int) -> RunManifest:
    """A run whose payloads have about `payload_bytes` bytes."""
    num_chunks = max(payload_bytes // 79 // _PATTERN_CHUNKS, 1) * _PATTERN_CHUNKS
    codec = CodecSection()
    tensors = (TensorSection(name="all", shape=(num_chunks * _CHUNK,)),)
    blob = BlobSection(sha256=bytes(32), num_bytes=1)
    return RunManifest(
        run=RunSection(name="gather", num_rounds=1),
        model=ModelSection(model_type="llama"),
        codec=codec,
        data=DataSection(
            seq_len=8, vocab_size=256, token_bytes=2, tokenizer=blob, shards=(blob,), held_out=blob
        ),
        training=TrainingSection(inner_steps=1, batch_size=1, learning_rate=0.1),
        outer=OuterSection(),
        timing=TimingSection(round_seconds=600.0),
        validators=ValidatorsSection(keys=(from_seed(bytes([99]) * 32).peer.key,)),
        admission=AdmissionSection(),
        genesis=GenesisSection(root=bytes(32), blob=blob),
        tensors=tensors,
        limits=LimitsSection(body_bytes=num_chunks * 79),
    )


def make_peers(manifest: RunManifest, num_peers: int) -> list[Peer]:
    """Valid payloads of round 1 by different keys; their bodies repeat a real pattern."""
    head = genesis_head(manifest.run_id, manifest.genesis.root)
    layout = BodyLayout(make_spec(manifest.codec), (_PATTERN_CHUNKS * _CHUNK,))
    peers = []
    for number in range(num_peers):
        values = np.random.default_rng(number).normal(0, 0.01, layout.sizes[0]).astype(np.float32)
        pattern = ErrorFeedback(layout, 0.95).stage([values]).body
        body = pattern * (manifest.limits.body_bytes // len(pattern))
        peers.append(_peer(manifest, head, from_seed(bytes([number + 1]) * 32), body))
    return peers


def _peer(manifest: RunManifest, head: ChainHead, identity: Identity, body: bytes) -> Peer:
    raw = build_payload(
        identity,
        run_id=manifest.run_id,
        manifest_hash=manifest.manifest_hash,
        codec_value_bits=manifest.codec.value_bits,
        round_id=1,
        base_state=head.state,
        inner_steps=1,
        tokens=8,
        body=body,
    )
    announcement = Announcement(
        run_id=manifest.run_id,
        round_id=1,
        peer_key=identity.peer.key,
        type=AnnouncementType.PUBLISHED,
        payload_id=payload_id(raw[:HEADER_BYTES]),
        num_bytes=len(raw),
        sequence=1,
        where=Where(provider=PROVIDER, bucket=f"peer-{identity.peer.key.hex()[:16]}"),
    )
    return Peer(identity, raw, build_announcement(identity, announcement))


def object_key(manifest: RunManifest, peer: Peer) -> str:
    """Where the payload is."""
    return StoreKeys(manifest.run_id).payload(1, peer.identity.peer)
