"""Whole nodes in one process: real steps, real loop, real training of a model of some numbers."""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal.compression import ErrorFeedback
from shoal.node.checkpoint import CheckpointFolder
from shoal.node.clock import Clock
from shoal.node.data.shards import TokenShards
from shoal.node.data_source import DataSource
from shoal.node.local_state import LocalState, from_snapshot
from shoal.node.model import CausalLM, tensor_table
from shoal.node.parameters import parameters_root
from shoal.node.round_loop import Outcome, run_rounds
from shoal.node.round_steps import RoundSteps
from shoal.node.run_context import RunContext
from shoal.node.trainer import Trainer
from shoal.protocol.chain import genesis_head
from shoal.protocol.identity import Identity
from shoal.protocol.manifest import GenesisSection, LimitsSection, RunManifest
from shoal.protocol.payload_header import peek
from shoal.protocol.round_machine import RoundState
from shoal.storage.object_store import ObjectStore
from tests.support.contexts import context_of
from tests.support.manifests import CODEC, body_bytes, tiny_manifest

VOCAB = 32


class _Logits:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Bigram(nn.Module):
    """Predicts the next token from the present one; 288 parameters in three tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 4)
        self.head = nn.Linear(4, VOCAB)

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> _Logits:
        return _Logits(self.head(self.embed(input_ids)))


def bigram_model(seed: int = 0) -> CausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CausalLM(Bigram())


def bigram_base(seed: int = 0) -> list[np.ndarray]:
    model = bigram_model(seed)
    return [p.detach().numpy().reshape(-1).copy() for p in model.inner.parameters()]


def bigram_manifest(**changes: Any) -> RunManifest:
    """A manifest whose tensors and genesis are the bigram model's."""
    table = tensor_table(bigram_model())
    manifest = tiny_manifest(
        tensors=table, limits=LimitsSection(body_bytes=body_bytes(table, CODEC)), **changes
    )
    root = parameters_root(table, bigram_base())
    return replace(manifest, genesis=GenesisSection(root=root, blob=manifest.genesis.blob))


def bigram_data(manifest: RunManifest) -> DataSource:
    """Tokens that follow a simple rule, so that there is something to learn."""
    rng = np.random.default_rng(9)
    length = manifest.data.seq_len + 1
    start = rng.integers(4, VOCAB, size=(64, 1))
    tokens = ((start + 3 * np.arange(length)) % (VOCAB - 4) + 4).astype(np.uint16)
    shards = [TokenShards([(Path("shard"), part)], VOCAB) for part in (tokens[:56], tokens[56:])]
    return DataSource(manifest, *shards)


def fresh_state(run: RunContext, *, trains: bool) -> LocalState:
    manifest = run.manifest
    head = genesis_head(manifest.run_id, manifest.genesis.root)
    return LocalState(
        head=head,
        previous_record_id=head.record_id,
        base=bigram_base(),
        trainer=Trainer(bigram_model(), manifest.training, manifest.run.num_rounds),
        feedback=ErrorFeedback(run.layout, manifest.training.error_decay) if trains else None,
    )


def machine_state(run: RunContext, state: LocalState) -> RoundState:
    return RoundState(
        me=run.me,
        trains=state.trains,
        closes=not state.trains,
        num_rounds=run.manifest.run.num_rounds,
        limits=run.limits,
        head=state.head,
        staged_payload=None if state.staged_raw is None else peek(state.staged_raw).payload_id,
    )


class SimulatedNode:
    """One node with a disk; `live` is one life of its process."""

    def __init__(
        self,
        manifest: RunManifest,
        identity: Identity,
        store: ObjectStore,
        clock: Clock,
        disk: Path,
        *,
        trains: bool,
    ) -> None:
        self.manifest, self.identity, self.disk = manifest, identity, disk
        self.run = context_of(manifest, identity, store, clock, disk / "events.jsonl")
        self.trains = trains
        self.stop = asyncio.Event()
        self.state = fresh_state(self.run, trains=trains)
        self.steps: RoundSteps | None = None

    def load(self) -> LocalState:
        """The state that a restart finds."""
        state = fresh_state(self.run, trains=self.trains)
        snapshot = CheckpointFolder(self.disk / "checkpoints").load()
        if snapshot is not None:
            from_snapshot(snapshot, state, self.manifest)
        return state

    async def live(self) -> Outcome:
        """From the disk's state until the run is over, `stop`, or cancellation (a crash)."""
        self.state = self.load()
        folder = CheckpointFolder(self.disk / "checkpoints")
        self.steps = RoundSteps(self.run, self.state, bigram_data(self.manifest), folder)
        return await run_rounds(self.steps, machine_state(self.run, self.state), self.stop)

    def close(self) -> None:
        self.run.log.close()

    @property
    def root(self) -> bytes:
        return parameters_root(self.manifest.tensors, self.state.base)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.disk / "events.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == name]


async def live_through(node: SimulatedNode, num_crashes: int, draw: random.Random) -> Outcome:
    """A node's life with crashes at random moments and pauses after them."""
    while True:
        life = asyncio.create_task(node.live())
        if num_crashes == 0:
            return await life
        num_crashes -= 1
        await asyncio.wait({life}, timeout=draw.random() * 40)
        if life.done():
            return await life
        life.cancel()
        await asyncio.wait({life})
        await asyncio.sleep(draw.random() * 20)
