"""The run manifest: everything that must be equal on every peer of a run.

Guarantees: a `RunManifest` was checked as a whole (types, ranges, and the rules between fields), it
has exactly one byte form (strict JSON, floats in hexadecimal), and its hash is that form's SHA-256
under the manifest domain. The run id is the hash of the run's first manifest; a later manifest of
the same run names it in `first` and has a higher `version`.

Does not do: say where things are (that is the node's own configuration), compute sizes from the
codec (the node fills `limits.body_bytes` when it makes the manifest, and compares it with its own
codec when it loads one), or decide whether a stranger's manifest deserves trust: the caller knows
the run id that it wants.

Bounds (a manifest comes from a stranger): at most 1 MiB, 4,096 tensors, 2^40 elements.
"""

import struct
from dataclasses import dataclass, field
from math import prod

from shoal.protocol import strict_json
from shoal.protocol.errors import ErrorCode, InvalidManifestError, RemoteProtocolError
from shoal.protocol.identity import PeerId, parse_peer_key
from shoal.protocol.payload import PayloadRules
from shoal.protocol.payload_header import expected_payload_bytes
from shoal.protocol.record import RecordRules
from shoal.protocol.schema import Notation, Settings, bounded, from_plain, one_of, to_plain
from shoal.protocol.seed_addresses import check_seeds
from shoal.protocol.signing import Domain, digest

MAX_MANIFEST_BYTES = 1 << 20
FORMAT = "shoal/manifest/1"
_MAX_TENSORS = 4096
_MAX_ELEMENTS = 1 << 40


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSection:
    """What the run is called and how long it goes on."""

    name: str
    num_rounds: int = bounded(1, 10_000_000)
    """The run ends after this round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSection:
    """A causal language model of transformers, by its configuration; never remote code."""

    model_type: str
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecSection:
    """How a pseudo-gradient becomes bytes (SparseLoCo, arXiv 2508.15706)."""

    chunk_size: int = bounded(16, 4096, default=4096)
    k_per_chunk: int = bounded(1, 512, default=64)
    value_bits: int = one_of(1, 2, default=2)
    max_scale: float = bounded(2.0**-14, 65504.0, default=1.0)
    """The largest scale that a payload may carry; must be exact in fp16."""

    @property
    def max_scale_bits(self) -> int:
        """The fp16 bit pattern of `max_scale`."""
        return int.from_bytes(struct.pack("<e", self.max_scale), "little")


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobSection:
    """An object that is named by its content."""

    sha256: bytes
    num_bytes: int = bounded(1, 1 << 50)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSection:
    """The tokens that the run trains on, and those that it is measured on."""

    seq_len: int = bounded(2, 1 << 20)
    vocab_size: int = bounded(2, 1 << 24)
    token_bytes: int = one_of(2, 4)
    tokenizer: BlobSection
    shards: tuple[BlobSection, ...]
    held_out: BlobSection


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSection:
    """The inner loop: H steps of AdamW, warm-up and cosine by inner step."""

    inner_steps: int = bounded(1, 100_000)
    batch_size: int = bounded(1, 100_000)
    learning_rate: float = bounded(0.0, 10.0)
    beta1: float = bounded(0.0, 0.9999, default=0.9)
    beta2: float = bounded(0.0, 0.999999, default=0.95)
    weight_decay: float = bounded(0.0, 10.0, default=0.1)
    grad_clip: float = bounded(1e-6, 1e6, default=1.0)
    warmup_steps: int = bounded(0, 10_000_000, default=0)
    min_lr_ratio: float = bounded(0.0, 1.0, default=0.1)
    error_decay: float = bounded(0.0, 1.0, default=0.95)
    """Beta of the error feedback: what a residual keeps from round to round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterSection:
    """The aggregation rule and the outer step."""

    alpha: float = bounded(1e-9, 1e3, default=1.0)
    tau: int = bounded(1, 255, default=1)
    """Coordinates are divided by max(number of senders, tau)."""
    cap_numerator: int = bounded(0, 1000, default=3)
    cap_denominator: int = bounded(1, 1000, default=2)
    """A chunk's scales are capped at this ratio of the lower median; numerator 0: no cap."""
    norm_clip: bool = True
    gather_limit: int = bounded(1, 255, default=20)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimingSection:
    """One knob, `round_seconds`; every other time limit is derived from it."""

    round_seconds: float = bounded(1.0, 1e6)
    min_peers: int = bounded(1, 255, default=1)
    """Fewer payloads than this: the round is void."""
    target_peers: int = bounded(1, 255, default=20)
    """With this many payloads the round need not wait for everybody."""
    checkpoint_every: int = bounded(1, 1_000_000, default=10)
    """Records of these rounds carry the root of the parameters."""
    overlap: str = one_of("none", "one-round", default="none")
    """one-round: a peer trains for the next round while this one's payloads travel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidatorsSection:
    """Who may sign records, and how many of them must."""

    keys: tuple[bytes, ...]
    threshold: int = bounded(1, 1000, default=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmissionSection:
    """Who may take part: everybody, or the listed keys."""

    mode: str = one_of("open", "roster", default="open")
    peers: tuple[bytes, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderSection:
    """Where peers may keep payloads: they announce provider, account and bucket, never a URL."""

    name: str
    url: str
    """Endpoint with `{account}` where the account goes, for example of R2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndpointsSection:
    """Where payloads may be, besides the run's own store."""

    providers: tuple[ProviderSection, ...] = ()
    allow_loopback: bool = False
    """A run on one machine: its own addresses are allowed."""
    seeds: tuple[str, ...] = ()
    """Peers to ask first where others are: multiaddrs (`seed_addresses`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSection:
    """One parameter of the model, in payload order."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenesisSection:
    """The first parameters: the checkpoint's root (over names, shapes, values) and its file."""

    root: bytes
    blob: BlobSection


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitsSection:
    """Exact and largest sizes of received objects."""

    body_bytes: int = bounded(1, 1 << 45)
    max_record_bytes: int = bounded(1024, 1 << 24, default=1 << 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunManifest:
    """All that must be equal for all. Make one with `read_manifest` or `check_manifest`."""

    format: str = one_of(FORMAT, default=FORMAT)
    version: int = bounded(1, 1_000_000, default=1)
    first: bytes = b""
    """The run id, empty in version 1 (where it is this manifest's own hash)."""
    run: RunSection
    model: ModelSection
    codec: CodecSection
    data: DataSection
    training: TrainingSection
    outer: OuterSection
    timing: TimingSection
    validators: ValidatorsSection
    admission: AdmissionSection
    endpoints: EndpointsSection = field(default_factory=EndpointsSection)
    genesis: GenesisSection
    tensors: tuple[TensorSection, ...]
    limits: LimitsSection

    def to_bytes(self) -> bytes:
        """The one byte form that is stored and hashed."""
        return strict_json.dump(to_plain(self, Notation.CANONICAL))

    @property
    def manifest_hash(self) -> bytes:
        """SHA-256 of the byte form under the manifest domain, 32 bytes."""
        return digest(Domain.MANIFEST, self.to_bytes())

    @property
    def run_id(self) -> bytes:
        """The hash of the run's first manifest, 32 bytes."""
        return self.first or self.manifest_hash

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of every tensor, in payload order."""
        return tuple(prod(tensor.shape) for tensor in self.tensors)

    @property
    def payload_bytes(self) -> int:
        """The exact length of every payload of this run."""
        return expected_payload_bytes(self.limits.body_bytes)

    @property
    def validator_ids(self) -> tuple[PeerId, ...]:
        """The validators' checked keys, in manifest order."""
        return tuple(parse_peer_key(key) for key in self.validators.keys)

    @property
    def roster(self) -> frozenset[PeerId] | None:
        """Who may send payloads; None: anyone."""
        if self.admission.mode == "open":
            return None
        return frozenset(parse_peer_key(key) for key in self.admission.peers)

    def payload_rules(self) -> PayloadRules:
        """What `payload.validate` has to know."""
        return PayloadRules(
            run_id=self.run_id,
            manifest_hash=self.manifest_hash,
            codec_value_bits=self.codec.value_bits,
            body_bytes=self.limits.body_bytes,
            roster=self.roster,
            max_inner_steps=self.training.inner_steps,
        )

    def record_rules(self) -> RecordRules:
        """What `record.read_record` has to know."""
        return RecordRules(
            run_id=self.run_id,
            manifest_hash=self.manifest_hash,
            validators=self.validator_ids,
            threshold=self.validators.threshold,
            gather_limit=self.outer.gather_limit,
            roster=self.roster,
            max_bytes=self.limits.max_record_bytes,
        )


def check_manifest(manifest: RunManifest) -> RunManifest:
    """Checks the rules between fields and returns the manifest unchanged.

    Raises:
        InvalidManifestError: a rule does not hold; says which field, expected and found.
    """
    _check_lineage(manifest)
    _check_digests(manifest)
    _check_tensors(manifest)
    _check_keys(manifest)
    _check_sizes(manifest)
    check_seeds(manifest.endpoints.seeds)
    return manifest


def read_manifest(raw: bytes, *, expected_hash: bytes | None = None) -> RunManifest:
    """Reads the canonical byte form; with `expected_hash`, exactly that manifest.

    Raises:
        RemoteProtocolError: E_LEN, E_JSON..., or E_MANIFEST when the hash is not the expected one.
        InvalidManifestError: the JSON is canonical but its content breaks a rule.
    """
    if len(raw) > MAX_MANIFEST_BYTES:
        raise RemoteProtocolError(
            ErrorCode.E_LEN, f"manifest of {len(raw)} bytes, limit {MAX_MANIFEST_BYTES}"
        )
    if expected_hash is not None and digest(Domain.MANIFEST, raw) != expected_hash:
        found = digest(Domain.MANIFEST, raw).hex()
        raise RemoteProtocolError(
            ErrorCode.E_MANIFEST, f"expected hash {expected_hash.hex()}, found {found}"
        )
    plain = strict_json.load(raw, max_bytes=MAX_MANIFEST_BYTES)
    manifest = check_manifest(from_plain(RunManifest, plain, Notation.CANONICAL))
    if manifest.to_bytes() != raw:
        # A key left out in favour of its default is a second spelling of the same manifest.
        raise InvalidManifestError("the whole file", "every key written out", "keys left out")
    return manifest


def check_successor(known: RunManifest, new: RunManifest) -> None:
    """A node that has seen `known` accepts `new` only if it goes forward in the same run.

    Raises:
        RemoteProtocolError: E_RUN for another run, E_ROLLBACK for an older version, E_MANIFEST for
            another manifest with the same version.
    """
    if new.run_id != known.run_id:
        raise RemoteProtocolError(
            ErrorCode.E_RUN, f"expected run {known.run_id.hex()}, found {new.run_id.hex()}"
        )
    if new.version < known.version:
        raise RemoteProtocolError(
            ErrorCode.E_ROLLBACK, f"manifest version {new.version}, already seen {known.version}"
        )
    if new.version == known.version and new.manifest_hash != known.manifest_hash:
        raise RemoteProtocolError(
            ErrorCode.E_MANIFEST,
            f"version {new.version} expected {known.manifest_hash.hex()}, "
            f"found {new.manifest_hash.hex()}",
        )


def _require(*, holds: bool, path: str, expected: str, found: object) -> None:
    if not holds:
        raise InvalidManifestError(path, expected, str(found))


def _check_lineage(manifest: RunManifest) -> None:
    wanted = 0 if manifest.version == 1 else 32
    _require(
        holds=len(manifest.first) == wanted,
        path="first",
        expected=f"{wanted} bytes in version {manifest.version}",
        found=f"{len(manifest.first)} bytes",
    )


def _check_digests(manifest: RunManifest) -> None:
    blobs = {
        "data.tokenizer": manifest.data.tokenizer.sha256,
        "data.held_out": manifest.data.held_out.sha256,
        "genesis.blob": manifest.genesis.blob.sha256,
        "genesis.root": manifest.genesis.root,
        **{f"data.shards[{i}]": s.sha256 for i, s in enumerate(manifest.data.shards)},
    }
    for path, value in blobs.items():
        _require(
            holds=len(value) == 32, path=path, expected="32 bytes", found=f"{len(value)} bytes"
        )
    _require(
        holds=bool(manifest.data.shards),
        path="data.shards",
        expected="at least one shard",
        found="none",
    )


def _check_tensors(manifest: RunManifest) -> None:
    names = [tensor.name for tensor in manifest.tensors]
    _require(
        holds=1 <= len(names) <= _MAX_TENSORS,
        path="tensors",
        expected=f"1 to {_MAX_TENSORS} tensors",
        found=len(names),
    )
    _require(
        holds=len(set(names)) == len(names),
        path="tensors",
        expected="names that differ",
        found="a name twice",
    )
    for i, tensor in enumerate(manifest.tensors):
        _require(
            holds=len(tensor.shape) <= 8 and all(0 < d <= _MAX_ELEMENTS for d in tensor.shape),
            path=f"tensors[{i}].shape",
            expected="at most 8 positive dimensions",
            found=tensor.shape,
        )
    # Python integers: a product of strangers' numbers cannot overflow.
    _require(
        holds=sum(manifest.sizes) <= _MAX_ELEMENTS,
        path="tensors",
        expected=f"at most {_MAX_ELEMENTS} elements",
        found=sum(manifest.sizes),
    )


def _check_keys(manifest: RunManifest) -> None:
    for section, keys in (
        ("validators.keys", manifest.validators.keys),
        ("admission.peers", manifest.admission.peers),
    ):
        for i, key in enumerate(keys):
            try:
                parse_peer_key(key)
            except RemoteProtocolError as error:
                raise InvalidManifestError(
                    f"{section}[{i}]", "a sound Ed25519 key", f"{key.hex()} ({error.code})"
                ) from error
        _require(
            holds=len(set(keys)) == len(keys),
            path=section,
            expected="keys that differ",
            found="a key twice",
        )
    num_validators = len(manifest.validators.keys)
    _require(
        holds=1 <= manifest.validators.threshold <= num_validators,
        path="validators.threshold",
        expected=f"1 to {num_validators} (the number of validators)",
        found=manifest.validators.threshold,
    )
    _require(
        holds=manifest.admission.mode == "open" or bool(manifest.admission.peers),
        path="admission.peers",
        expected="at least one key when mode is roster",
        found="none",
    )


def _check_sizes(manifest: RunManifest) -> None:
    _require(
        holds=manifest.codec.k_per_chunk <= manifest.codec.chunk_size,
        path="codec.k_per_chunk",
        expected=f"at most chunk_size ({manifest.codec.chunk_size})",
        found=manifest.codec.k_per_chunk,
    )
    exact = struct.unpack("<e", struct.pack("<e", manifest.codec.max_scale))[0]
    _require(
        holds=exact == manifest.codec.max_scale,
        path="codec.max_scale",
        expected=f"a number that fp16 holds exactly (nearest: {exact})",
        found=manifest.codec.max_scale,
    )
    _require(
        holds=manifest.timing.min_peers <= manifest.outer.gather_limit,
        path="timing.min_peers",
        expected=f"at most outer.gather_limit ({manifest.outer.gather_limit})",
        found=manifest.timing.min_peers,
    )
    _require(
        holds=manifest.data.vocab_size <= 1 << (8 * manifest.data.token_bytes),
        path="data.vocab_size",
        expected=f"what {manifest.data.token_bytes} bytes can hold",
        found=manifest.data.vocab_size,
    )
