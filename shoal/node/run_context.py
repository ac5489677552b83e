"""What every part of a node shares: the manifest and what follows from it, identity, store, clock.

Guarantees: made once at start, immutable but for who counted lately; the codec's own length equals
the manifest's.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shoal.compression import (
    ArrivingBody,
    BodyLayout,
    CheckedBody,
    CodecSpec,
    CorruptBodyError,
    SpecMismatchError,
    check_body,
)
from shoal.node.clock import Clock
from shoal.node.errors import ConfigError
from shoal.node.familiar import Familiar
from shoal.node.store_keys import RUN_STORE, StoreKeys
from shoal.node.telemetry.event_log import EventLog
from shoal.protocol.announcement import Where
from shoal.protocol.closing import TimeLimits, derive_limits
from shoal.protocol.errors import ErrorCode, PayloadError
from shoal.protocol.identity import Identity, PeerId
from shoal.protocol.manifest import CodecSection, RunManifest
from shoal.protocol.payload import PayloadRules
from shoal.protocol.record import RecordRules
from shoal.storage.meter import Meter, MeteredStore
from shoal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class BodyChecker:
    """The codec's check in the form that `protocol.payload.validate` takes."""

    layout: BodyLayout

    def __call__(self, body: memoryview) -> CheckedBody:
        """Checks a payload's body.

        Raises:
            PayloadError: with the codec's code.
        """
        try:
            return check_body(body, self.layout)
        except CorruptBodyError as error:
            raise PayloadError(ErrorCode(error.code), str(error)) from error

    def start(self) -> "_ArrivingBody":
        """Begins to check a body that arrives."""
        return _ArrivingBody(ArrivingBody(self.layout))


@dataclass(frozen=True, slots=True)
class _ArrivingBody:
    """The codec's check of an arriving body in the form that `protocol.payload` takes."""

    codec: ArrivingBody

    def advance(self, body: memoryview, num_arrived: int) -> None:
        """Checks the whole chunks that are there."""
        self.codec.advance(body, num_arrived)

    def finish(self, body: memoryview) -> CheckedBody:
        """Checks the rest.

        Raises:
            PayloadError: with the codec's code.
        """
        try:
            return self.codec.finish(body)
        except CorruptBodyError as error:
            raise PayloadError(ErrorCode(error.code), str(error)) from error


def make_spec(section: CodecSection) -> CodecSpec:
    """The codec that a manifest describes."""
    return CodecSpec(
        chunk_size=section.chunk_size,
        k_per_chunk=section.k_per_chunk,
        value_bits=section.value_bits,
        max_scale_bits=section.max_scale_bits,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """Shared, immutable but for `familiar`."""

    manifest: RunManifest
    identity: Identity
    store: MeteredStore
    own: MeteredStore
    """Where this node's own payloads go."""
    own_where: Where
    """What an announcement says about that place."""
    read_at: Callable[[Where], MeteredStore]
    """The store of a place that a verified announcement names; raises PayloadError for others."""
    serve_again: Callable[[bytes, memoryview], Awaitable[None]]
    """Serves a verified payload of another peer, by its id, to who asks."""
    meter: Meter
    """Counts the store's bytes; its clock measures all durations."""
    clock: Clock
    log: EventLog
    layout: BodyLayout
    keys: StoreKeys
    limits: TimeLimits
    payload_rules: PayloadRules
    record_rules: RecordRules
    familiar: Familiar
    """Who counted lately; the one part that changes, with each record that is applied."""

    @property
    def me(self) -> PeerId:
        """This node."""
        return self.identity.peer


def _only_run_store(store: ObjectStore, where: Where) -> ObjectStore:
    if where.provider == RUN_STORE:
        return store
    detail = f"no provider {where.provider!r} is known in this run"
    raise PayloadError(ErrorCode.E_HOST_NOT_ALLOWED, detail)


async def _serve_nothing(_: bytes, __: memoryview) -> None:
    """A node without a network process serves nothing."""


def make_context(
    manifest: RunManifest,
    identity: Identity,
    store: ObjectStore,
    *,
    meter: Meter,
    clock: Clock,
    log: EventLog,
    own: tuple[ObjectStore, Where] | None = None,
    read_at: Callable[[Where], ObjectStore] | None = None,
    serve_again: Callable[[bytes, memoryview], Awaitable[None]] | None = None,
) -> RunContext:
    """Derives everything that follows from the manifest.

    Args:
        manifest: of the run.
        identity: this node's.
        store: the run's objects.
        meter: counts all bytes.
        clock: wall clock.
        log: for events.
        own: where own payloads go and how that is announced; None: into the run's store.
        read_at: finds the store of an announced place; None: only the run's store is known.
        serve_again: serves others' payloads; None: this node does not.

    Raises:
        ConfigError: the manifest's body length is not what this codec makes of its tensors, or it
            can make nothing of them.
    """
    own_store, own_where = own or (store, Where(provider=RUN_STORE))
    find = read_at or (lambda where: _only_run_store(store, where))
    try:
        layout = BodyLayout(make_spec(manifest.codec), manifest.sizes)
    except SpecMismatchError as error:
        raise ConfigError(
            "the manifest", "tensors", "sizes that this codec can hold", str(error)
        ) from error
    if layout.body_bytes != manifest.limits.body_bytes:
        raise ConfigError(
            "the manifest",
            "limits.body_bytes",
            f"{layout.body_bytes} (from tensors and codec)",
            str(manifest.limits.body_bytes),
        )
    return RunContext(
        manifest=manifest,
        identity=identity,
        store=MeteredStore(store, meter),
        own=MeteredStore(own_store, meter),
        own_where=own_where,
        read_at=lambda where: MeteredStore(find(where), meter),
        serve_again=serve_again or _serve_nothing,
        meter=meter,
        clock=clock,
        log=log,
        layout=layout,
        keys=StoreKeys(manifest.run_id),
        limits=derive_limits(manifest.timing.round_seconds),
        payload_rules=manifest.payload_rules(),
        record_rules=manifest.record_rules(),
        familiar=Familiar(manifest.outer.gather_limit, manifest.roster),
    )
