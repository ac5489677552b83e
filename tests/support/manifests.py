"""Small manifests, keys and chain records that every test can afford."""

from dataclasses import replace
from typing import Any

from shoal.compression import BodyLayout, CodecSpec
from shoal.node.run_context import make_spec
from shoal.protocol.chain import ChainHead, genesis_head, next_state, void_state
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
from shoal.protocol.record import VerifiedRecord, build_record, read_record
from shoal.protocol.record_body import CloseReason, CountedPayload, RoundRecord
from shoal.protocol.schema import Settings

VALIDATOR = from_seed(b"\x76" * 32)


def peer(number: int) -> Identity:
    """Key number `number`; different numbers, different keys."""
    return from_seed(number.to_bytes(4, "little") * 8)


TENSORS = (
    TensorSection(name="wide", shape=(8, 8)),
    TensorSection(name="short", shape=(10,)),
)
CODEC = CodecSection(chunk_size=16, k_per_chunk=4)


def body_bytes(tensors: tuple[TensorSection, ...], codec: CodecSection) -> int:
    sizes = []
    for tensor in tensors:
        size = 1
        for dimension in tensor.shape:
            size *= dimension
        sizes.append(size)
    return BodyLayout(make_spec(codec), sizes).body_bytes


def tiny_manifest(
    *,
    tensors: tuple[TensorSection, ...] = TENSORS,
    codec: CodecSection = CODEC,
    **changes: Any,
) -> RunManifest:
    """Tensors of 64 and 10 elements, chunks of 16, four kept; open to all; one validator."""
    blob = BlobSection(sha256=bytes([5]) * 32, num_bytes=100)
    manifest = RunManifest(
        run=RunSection(name="tiny", num_rounds=4),
        model=ModelSection(model_type="llama", settings=Settings((("rope_theta", 0.5),))),
        codec=codec,
        data=DataSection(
            seq_len=4, vocab_size=32, token_bytes=2, tokenizer=blob, shards=(blob,), held_out=blob
        ),
        training=TrainingSection(inner_steps=3, batch_size=2, learning_rate=0.01),
        outer=OuterSection(),
        timing=TimingSection(round_seconds=60.0, checkpoint_every=1),
        validators=ValidatorsSection(keys=(VALIDATOR.peer.key,)),
        admission=AdmissionSection(),
        genesis=GenesisSection(root=bytes([6]) * 32, blob=blob),
        tensors=tensors,
        limits=LimitsSection(body_bytes=body_bytes(tensors, codec)),
    )
    return replace(manifest, **changes)


def layout_of(manifest: RunManifest) -> BodyLayout:
    return BodyLayout(make_spec(manifest.codec), manifest.sizes)


def small_layout(**spec: int) -> BodyLayout:
    """A layout without a manifest."""
    chosen = {"chunk_size": 16, "k_per_chunk": 4, **spec}
    return BodyLayout(CodecSpec(**chosen), (64, 10))


def first_head(manifest: RunManifest) -> ChainHead:
    return genesis_head(manifest.run_id, manifest.genesis.root)


def counted(identity: Identity, payload_id: bytes, weight: int = 32768) -> CountedPayload:
    return CountedPayload(peer=identity.peer, payload_id=payload_id, weight=weight)


def record_after(
    head: ChainHead, manifest: RunManifest, entries: tuple[CountedPayload, ...], **changes: Any
) -> RoundRecord:
    """A record that follows `head`; its sum hash is made up."""
    round_id = head.round_id + 1
    state = (
        next_state(
            manifest.run_id, round_id, head.state, [e.payload_id for e in entries], bytes(32)
        )
        if entries
        else void_state(manifest.run_id, round_id, head.state)
    )
    record = RoundRecord(
        run_id=manifest.run_id,
        manifest_hash=manifest.manifest_hash,
        round_id=round_id,
        attempt=0,
        previous=head.record_id,
        base_state=head.state,
        state=state,
        void=not entries,
        counted=entries,
        params_root=b"",
        closed_at_ms=1000,
        close_reason=CloseReason.ALL_PUBLISHED,
    )
    return replace(record, **changes)


def verified_after(
    head: ChainHead, manifest: RunManifest, entries: tuple[CountedPayload, ...] = (), **changes: Any
) -> VerifiedRecord:
    """The same, signed and read back as every node does."""
    raw = build_record(record_after(head, manifest, entries, **changes), (VALIDATOR,))
    return read_record(raw, manifest.record_rules(), head)
