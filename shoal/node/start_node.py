"""From a manifest and a node's configuration to a running loop.

Guarantees: everything that can be checked before training is checked here, cheapest first (locks,
key, roster, store, clock, data, genesis), and each failure is one clear line; a node that was here
before continues from its checkpoint.

Does not do: parse command lines, handle signals (see `app` and `stopping`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shoal.compression import ErrorFeedback
from shoal.compression.warm_up import warm_up
from shoal.node.bandwidth import keeping_books, make_bandwidth
from shoal.node.blobs import BlobCache
from shoal.node.checkpoint import CheckpointFolder
from shoal.node.clock import MAX_CLOCK_ERROR_S, Clock, SystemClock
from shoal.node.config import NodeConfig
from shoal.node.data_source import DataSource, open_data
from shoal.node.errors import (
    CheckpointError,
    ConfigError,
    HaltError,
    ResourceError,
    StoppedError,
)
from shoal.node.inbox import serving
from shoal.node.local_state import LocalState, from_snapshot
from shoal.node.locks import lock_file, lock_folder
from shoal.node.model import build_model, tensor_table
from shoal.node.monthly_use import MonthlyUse
from shoal.node.parameters import from_file, parameters_root
from shoal.node.places import Places, open_places
from shoal.node.rendezvous import meeting_others
from shoal.node.role import check_role
from shoal.node.round_loop import Outcome, run_rounds
from shoal.node.round_steps import RoundSteps
from shoal.node.run_context import RunContext, make_context
from shoal.node.store_keys import P2P
from shoal.node.telemetry.event_log import EventLog
from shoal.node.telemetry.names import EventName
from shoal.node.trainer import Trainer
from shoal.node.web.history import RunFacts
from shoal.node.web.server import node_page
from shoal.protocol.chain import genesis_head
from shoal.protocol.errors import ErrorCode
from shoal.protocol.identity import load_key
from shoal.protocol.manifest import RunManifest
from shoal.protocol.payload_header import peek
from shoal.protocol.round_machine import RoundState
from shoal.storage.errors import StorageError, StorageUnavailableError
from shoal.storage.meter import Meter

logger = logging.getLogger(__name__)

EVENTS_FILE = "events.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """How a node ended."""

    outcome: Outcome
    state_hash: bytes
    parameters_root: bytes


async def run_node(
    manifest: RunManifest, config: NodeConfig, *, validates: bool, stop: asyncio.Event
) -> NodeResult:
    """Runs a node until the run is over or `stop` is set.

    Args:
        manifest: of the run.
        config: of this node.
        validates: close rounds instead of training.
        stop: set it to leave.

    Raises:
        NodeError: one of its kinds says what is wrong and whose it is to mend.
        DataError: a token shard is not what it must be.
        LocalProtocolError: the key file is not usable.
    """
    state_dir = Path(config.state_dir)
    async with AsyncExitStack() as held:
        held.enter_context(lock_file(Path(config.key_file), "the key"))
        held.enter_context(lock_folder(state_dir, "the state folder"))
        identity = load_key(Path(config.key_file))
        check_role(manifest, config, identity, validates=validates)
        clock = SystemClock(config.clock_offset_s)
        log = _open_log(state_dir / EVENTS_FILE, clock)
        held.callback(log.close)
        await held.enter_async_context(
            node_page(config.web, log, _run_facts(manifest), clock.now_s)
        )
        bandwidth, book = make_bandwidth(config, clock.now_s)
        _require_quota(book)
        places = await open_places(manifest, config, identity, held)
        await held.enter_async_context(keeping_books(config, book, places.network, log, stop))
        seeds_at = None if config.store.kind == P2P else places.served
        folder = state_dir / "network"
        await held.enter_async_context(
            meeting_others(manifest, places.network, seeds_at, identity.peer, folder)
        )
        run = make_context(
            manifest,
            identity,
            places.run,
            meter=Meter(time.monotonic, bandwidth=bandwidth),
            clock=clock,
            log=log,
            own=(places.own, places.own_where),
            read_at=places.read_at,
            serve_again=places.serve_again,
        )
        await _patiently(lambda: check_clock(run, places), stop)
        torch.set_num_threads(config.num_threads)
        try:
            result = await _run(run, config, places, validates=validates, stop=stop)
        except StoppedError:
            _require_quota(book)
            raise
        if not result.outcome.finished:
            _require_quota(book)
        return result


async def _run(
    run: RunContext, config: NodeConfig, places: Places, *, validates: bool, stop: asyncio.Event
) -> NodeResult:
    manifest, state_dir = run.manifest, Path(config.state_dir)
    # In the background: reading compiled kernels from disk would else delay the first gather.
    warming = asyncio.create_task(asyncio.to_thread(warm_up))
    data, state = await _load(run, config, stop, validates=validates)
    await warming
    folder = CheckpointFolder(state_dir / "checkpoints")
    snapshot = folder.load()
    if snapshot is not None:
        from_snapshot(snapshot, state, manifest)
    run.log.emit(
        EventName.NODE_STARTED,
        peer=run.me.text,
        role="validator" if validates else "peer",
        run_id=manifest.run_id.hex(),
        round_id=state.head.round_id,
        limits={name: getattr(run.limits, name) for name in run.limits.__slots__},
    )
    steps = RoundSteps(run, state, data, folder)
    async with serving(run, places.served, lambda: state.head, config.serve.listen) as url:
        outcome = await run_rounds(steps, _round_state(run, state, validates=validates), stop)
        root = parameters_root(manifest.tensors, state.base)
        run.log.emit(
            EventName.NODE_STOPPED,
            finished=outcome.finished,
            round_id=outcome.round_id,
            state_hash=state.head.state.hex(),
            parameters_root=root.hex(),
        )
        where = url or ("libp2p addresses" if validates and places.network else "")
        if where and outcome.finished:
            logger.info("the run is over; serving it at %s until stopped", where)
            await stop.wait()
    return NodeResult(outcome=outcome, state_hash=state.head.state, parameters_root=root)


def _require_quota(book: MonthlyUse) -> None:
    """Without anything to receive a node can only wait.

    Raises:
        ResourceError: the month's download quota is used up (E_QUOTA).
    """
    reason = book.exhausted("down")
    if reason:
        raise ResourceError(reason)


def _run_facts(manifest: RunManifest) -> RunFacts:
    roster = manifest.roster
    return RunFacts(
        name=manifest.run.name,
        num_rounds=manifest.run.num_rounds,
        inner_steps=manifest.training.inner_steps,
        roster=None if roster is None else frozenset(peer.text for peer in roster),
    )


def _round_state(run: RunContext, state: LocalState, *, validates: bool) -> RoundState:
    return RoundState(
        me=run.me,
        trains=not validates,
        closes=validates,
        num_rounds=run.manifest.run.num_rounds,
        limits=run.limits,
        head=state.head,
        staged_payload=None if state.staged_raw is None else peek(state.staged_raw).payload_id,
    )


async def _load(
    run: RunContext, config: NodeConfig, stop: asyncio.Event, *, validates: bool
) -> tuple[DataSource, LocalState]:
    manifest = run.manifest
    cache = BlobCache(Path(config.state_dir) / "blobs", run.store, run.keys)

    async def fetch_all() -> None:
        for blob in (*manifest.data.shards, manifest.data.held_out, manifest.genesis.blob):
            await cache.fetch(blob)

    await _patiently(fetch_all, stop)
    data = open_data(manifest, cache.path)
    model = build_model(manifest.model, manifest.data.vocab_size, seed=0)
    if tensor_table(model) != manifest.tensors:
        raise ConfigError(
            "the manifest",
            "tensors",
            "what this version of transformers makes of [model]",
            "other names or shapes; install the versions of the constraints file",
        )
    base = from_file(cache.path(manifest.genesis.blob).read_bytes(), manifest.tensors)
    found = parameters_root(manifest.tensors, base)
    if found != manifest.genesis.root:
        raise CheckpointError(
            f"the genesis has root {found.hex()}, the manifest says {manifest.genesis.root.hex()}"
        )
    trainer = Trainer(model.to(config.device), manifest.training, manifest.run.num_rounds)
    section = manifest.training
    feedback = None if validates else ErrorFeedback(run.layout, section.error_decay)
    head = genesis_head(manifest.run_id, manifest.genesis.root)
    base = [np.ascontiguousarray(flat, dtype=np.float32) for flat in base]
    return data, LocalState(
        head=head,
        previous_record_id=head.record_id,
        base=base,
        trainer=trainer,
        feedback=feedback,
    )


def _open_log(path: Path, clock: Clock) -> EventLog:
    try:
        return EventLog(path, clock.now_s)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror}") from error


async def _patiently(work: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    """Repeats `work` while the store does not answer; a node never ends for want of others.

    Raises:
        StoppedError: `stop` was set meanwhile.
    """
    pause_s = 1.0
    while not stop.is_set():
        try:
            return await work()
        except StorageUnavailableError as error:
            logger.warning("waiting for the store, next try in %.0f s: %s", pause_s, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            pause_s = min(pause_s * 1.5, 30.0)
    raise StoppedError("stopped before the first round")


async def check_clock(run: RunContext, places: Places) -> None:
    """Compares this machine's clock with the store's.

    Raises:
        HaltError: they differ too much (E_CLOCK).
        ResourceError: the store cannot be used.
        StorageUnavailableError: the store does not answer now.
    """
    before_s = run.clock.now_s()
    try:
        theirs_s = await places.time_s(run.keys.hello(run.me))
    except StorageUnavailableError:
        raise
    except StorageError as error:
        raise ResourceError(f"the store cannot be used: {error}") from error
    after_s = run.clock.now_s()
    # The store's time lies between ours before and after; whole-second stores cut off up to 1 s.
    error_s = max(theirs_s - after_s, before_s - theirs_s - 1.0, 0.0)
    if error_s > MAX_CLOCK_ERROR_S:
        direction = "behind" if theirs_s > after_s else "ahead of"
        raise HaltError(
            f"{ErrorCode.E_CLOCK} this machine's clock is {error_s:.0f} s {direction} the store's; "
            "set it (timedatectl set-ntp true), then start again"
        )
