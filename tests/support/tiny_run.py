"""Tiny runs on the disk: a plan, a text, keys, a store, node folders; a round takes 0.2 s."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shoal.compression import BodyLayout, CheckedBody
from shoal.node.aggregate import aggregate
from shoal.node.init_run import init_run
from shoal.node.outer_step import outer_step
from shoal.node.parameters import from_file, parameters_root
from shoal.node.run_context import BodyChecker, make_spec
from shoal.node.store_keys import StoreKeys
from shoal.protocol.chain import ChainHead, genesis_head
from shoal.protocol.identity import Identity, from_seed, save_key
from shoal.protocol.manifest import RunManifest
from shoal.protocol.payload import Payload, PayloadContext, validate
from shoal.protocol.record import VerifiedRecord, read_record

_PLAN = """\
[run]
name = "tiny"
num_rounds = {num_rounds}

[model]
model_type = "llama"

[model.settings]
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 16
tie_word_embeddings = true
pad_token_id = 0
bos_token_id = 1
eos_token_id = 1

[data]
texts = ["text.txt"]
vocab_size = 300
seq_len = 16

[training]
inner_steps = {inner_steps}
batch_size = 2
learning_rate = 1e-2

[codec]
chunk_size = 256
k_per_chunk = 16

[timing]
round_seconds = {round_seconds}
min_peers = {min_peers}
target_peers = {target_peers}
checkpoint_every = 1
overlap = "{overlap}"

[swarm]
num_peers = 2
"""

_NODE = """\
key_file = "key.pem"
state_dir = "{state_dir}"
clock_offset_s = {clock_offset_s}

[store]
kind = "directory"
path = "{store}"
"""


def write_plan(
    folder: Path,
    *,
    num_rounds: int = 4,
    inner_steps: int = 2,
    round_seconds: float = 20.0,
    min_peers: int = 1,
    target_peers: int = 2,
    overlap: str = "none",
    roster: tuple[bytes, ...] = (),
) -> Path:
    """Writes plan.toml and its text into `folder`; gives the plan's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(tiny_text())
    plan = _PLAN.format(
        num_rounds=num_rounds,
        inner_steps=inner_steps,
        round_seconds=round_seconds,
        min_peers=min_peers,
        target_peers=target_peers,
        overlap=overlap,
    )
    if roster:
        keys = ", ".join(f'"{key.hex()}"' for key in roster)
        plan += f'\n[admission]\nmode = "roster"\npeers = [{keys}]\n'
    path = folder / "plan.toml"
    path.write_text(plan)
    return path


def tiny_text() -> str:
    """A text of 120 documents, always the same."""
    draw = random.Random(7)  # noqa: S311  # a text, not a secret
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 7))) for _ in range(400)]
    return "\n\n".join(" ".join(draw.choices(words, k=40)) for _ in range(120)) + "\n"


@dataclass(frozen=True, kw_only=True)
class TinyRun:
    """A run that is ready to start from."""

    root: Path
    manifest: RunManifest
    identities: dict[str, Identity] = field(repr=False)
    """By name: validator, peer-0, peer-1 ..."""

    @property
    def manifest_file(self) -> Path:
        """The manifest's byte form."""
        return self.root / "manifest.json"

    @property
    def store(self) -> Path:
        """Root folder of the store."""
        return self.root / "store"

    @property
    def keys(self) -> StoreKeys:
        """The names of the run's objects."""
        return StoreKeys(self.manifest.run_id)

    def object_file(self, key: str) -> Path:
        """The file of an object in the directory store."""
        return self.store / f"{key}+"

    def plant(self, key: str, raw: bytes) -> None:
        """Writes an object as somebody with access to the disk would: past the store's rules."""
        path = self.object_file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.root / "planted.tmp"
        temporary.write_bytes(raw)
        temporary.replace(path)

    @property
    def stored(self) -> "StoredRun":
        """What lies in the store."""
        return StoredRun(self.manifest, lambda key: self.object_file(key).read_bytes())

    def add_node(
        self, name: str, *, key_of: str = "", state_dir: str = "state", clock_offset_s: float = 0.0
    ) -> Path:
        """Makes a node's folder with key.pem and node.toml; gives the folder."""
        folder = self.root / "nodes" / name
        folder.mkdir(parents=True)
        save_key(folder / "key.pem", self.identities[key_of or name])
        text = _NODE.format(state_dir=state_dir, store=self.store, clock_offset_s=clock_offset_s)
        (folder / "node.toml").write_text(text)
        return folder


def make_tiny_run(
    root: Path,
    *,
    num_peers: int,
    num_rounds: int = 4,
    inner_steps: int = 2,
    round_seconds: float = 20.0,
    min_peers: int = 1,
    target_peers: int = 2,
    overlap: str = "none",
) -> TinyRun:
    """Starts a run whose roster is `num_peers` peers with known keys; no node runs yet."""
    names = ["validator", *(f"peer-{i}" for i in range(num_peers))]
    identities = {name: from_seed(bytes([i + 1]) * 32) for i, name in enumerate(names)}
    plan = write_plan(
        root,
        num_rounds=num_rounds,
        inner_steps=inner_steps,
        round_seconds=round_seconds,
        min_peers=min_peers,
        target_peers=target_peers,
        overlap=overlap,
        roster=tuple(identities[name].peer.key for name in names[1:]),
    )
    validator = identities["validator"].peer.text
    manifest = init_run(
        plan, root / "store", root / "manifest.json", [validator], root / "data", threshold=1
    )
    return TinyRun(root=root, manifest=manifest, identities=identities)


@dataclass
class StoredRun:
    """A run's objects, wherever they lie."""

    manifest: RunManifest
    read: Callable[[str], bytes]
    """The bytes under a key."""

    @property
    def keys(self) -> StoreKeys:
        """The names of the run's objects."""
        return StoreKeys(self.manifest.run_id)


@dataclass(frozen=True)
class Replayed:
    """Where a run's records lead."""

    head: ChainHead
    parameters_root: str
    records: list[VerifiedRecord]


def replay(run: TinyRun | StoredRun, num_rounds: int | None = None) -> Replayed:
    """Applies every record's counted payloads once, in order, from the store alone.

    A node that had applied a payload twice, or had missed one, would end with another root.
    """
    if isinstance(run, TinyRun):
        run = run.stored
    manifest = run.manifest
    genesis = run.read(run.keys.blob(manifest.genesis.blob.sha256))
    base = [np.array(flat) for flat in from_file(genesis, manifest.tensors)]
    head = genesis_head(manifest.run_id, manifest.genesis.root)
    records = []
    for round_id in range(1, (num_rounds or manifest.run.num_rounds) + 1):
        raw = run.read(run.keys.record(round_id))
        verified = read_record(raw, manifest.record_rules(), head)
        payloads = [_counted(run, head, e.payload_id) for e in verified.record.counted]
        if payloads:
            result = aggregate([p.body for p in payloads], _layout(manifest), manifest.outer)
            outer_step(base, result.sums, manifest.outer)
        records.append(verified)
        head = verified.head
    return Replayed(head, parameters_root(manifest.tensors, base).hex(), records)


def _layout(manifest: RunManifest) -> BodyLayout:

    return BodyLayout(make_spec(manifest.codec), manifest.sizes)


def _counted(run: StoredRun, head: ChainHead, payload_id: bytes) -> Payload[CheckedBody]:
    context = PayloadContext(
        round_id=head.round_id + 1,
        base_state=head.state,
        seen={},
        check_body=BodyChecker(_layout(run.manifest)),
    )
    raw = run.read(run.keys.copy(payload_id))
    payload = validate(raw, run.manifest.payload_rules(), context)
    assert payload.payload_id == payload_id
    return payload
