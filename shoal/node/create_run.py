"""Starting a run: genesis, data and manifest from a plan (`shoal init`).

Guarantees: the manifest is put into the store last, after everything that it names, so that half a
run never looks whole; doing it again with the same plan and data gives the same bytes except for
the genesis on another machine, sends what is missing and replaces nothing.

Does not do: start nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shoal.compression import BodyLayout, SpecMismatchError
from shoal.node import blobs
from shoal.node.config import RunPlan
from shoal.node.data.prepare import PreparedData, prepare
from shoal.node.data.token_files import DataFile
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.model import build_model, parameters_of, tensor_table
from shoal.node.parameters import parameters_root, to_file
from shoal.node.run_context import make_spec
from shoal.node.store_keys import StoreKeys
from shoal.protocol.errors import InvalidManifestError
from shoal.protocol.identity import PeerId
from shoal.protocol.manifest import (
    AdmissionSection,
    BlobSection,
    DataSection,
    GenesisSection,
    LimitsSection,
    RunManifest,
    ValidatorsSection,
    check_manifest,
)
from shoal.storage.errors import (
    AccessDeniedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
)
from shoal.storage.object_store import ObjectStore


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """A manifest and the bytes that it names."""

    manifest: RunManifest
    genesis: bytes


def prepare_data(plan: RunPlan, folder: Path) -> PreparedData:
    """Token shards and tokenizer from the plan's texts, made once.

    Raises:
        DataError: a text is missing, not UTF-8, or too short.
    """
    return prepare(
        [Path(text) for text in plan.data.texts],
        folder,
        vocab_size=plan.data.vocab_size,
        shard_tokens=plan.data.shard_tokens,
        held_out_ratio=plan.data.held_out_ratio,
    )


def make_run(
    plan: RunPlan, data: PreparedData, validators: tuple[PeerId, ...], threshold: int
) -> NewRun:
    """Draws the first parameters and writes the manifest's content.

    Args:
        plan: what whoever starts the run wrote down.
        data: of `prepare_data`.
        validators: who signs records.
        threshold: how many of them must.

    Raises:
        ConfigError: the plan contradicts itself or transformers refuses the model.
    """
    _check_lengths(plan, data)
    model = build_model(plan.model, data.vocab_size, plan.genesis.seed)
    tensors = tensor_table(model)
    values = [p.detach().numpy().reshape(-1) for p in parameters_of(model)]
    genesis = to_file(tensors, values)
    try:
        spec = make_spec(plan.codec)
        sizes = tuple(p.numel() for p in parameters_of(model))
        manifest = RunManifest(
            run=plan.run,
            model=plan.model,
            codec=plan.codec,
            data=_data_section(plan, data),
            training=plan.training,
            outer=plan.outer,
            timing=plan.timing,
            validators=ValidatorsSection(
                keys=tuple(peer.key for peer in validators), threshold=threshold
            ),
            admission=plan.admission,
            endpoints=plan.endpoints,
            genesis=GenesisSection(
                root=parameters_root(tensors, values), blob=blobs.describe_bytes(genesis)
            ),
            tensors=tensors,
            limits=LimitsSection(body_bytes=BodyLayout(spec, sizes).body_bytes),
        )
        return NewRun(manifest=check_manifest(manifest), genesis=genesis)
    except InvalidManifestError as error:
        raise ConfigError("the run plan", error.path, error.expected, error.found) from error
    except SpecMismatchError as error:
        raise ConfigError(
            "the run plan", "codec", "a codec that fits the model", str(error)
        ) from error


def _check_lengths(plan: RunPlan, data: PreparedData) -> None:
    """Every node would refuse shards without a single sequence; better said here."""
    longest = max(data.num_tokens(shard) for shard in data.shards)
    for what, num_tokens in (("training", longest), ("held-out", data.num_tokens(data.held_out))):
        if num_tokens < plan.data.seq_len + 1:
            raise ConfigError(
                "the run plan",
                "data.seq_len",
                f"at most {num_tokens - 1} (the {what} text has {num_tokens} tokens)",
                f"{plan.data.seq_len}; lower it or add text",
            )


def _data_section(plan: RunPlan, data: PreparedData) -> DataSection:
    def section(file: DataFile) -> BlobSection:
        return BlobSection(sha256=file.sha256, num_bytes=file.num_bytes)

    return DataSection(
        seq_len=plan.data.seq_len,
        vocab_size=data.vocab_size,
        token_bytes=data.token_bytes,
        tokenizer=section(data.tokenizer),
        shards=tuple(section(shard) for shard in data.shards),
        held_out=section(data.held_out),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """An object on its way into the store.

    Attributes:
        name: what it is.
        number: of the objects of the run, from 1; the manifest is the last one.
        num_objects: of the run.
        num_bytes: its length.
        stage: "begins" before it is looked for, then "sent", or "there" if it was.
    """

    name: str
    number: int
    num_objects: int
    num_bytes: int
    stage: Literal["begins", "sent", "there"] = "begins"


def _nobody(_: Step) -> None:
    """For callers that do not look."""


async def store_run(
    new: NewRun, data: PreparedData, store: ObjectStore, tell: Callable[[Step], None] = _nobody
) -> None:
    """Uploads genesis, data and, last, the manifest; what is there already is not sent again.

    Args:
        new: of `make_run`.
        data: of `prepare_data`.
        store: where to.
        tell: hears of every object before and after it.

    Raises:
        ResourceError: the store did not take them, or has something else in their place.
    """
    keys = StoreKeys(new.manifest.run_id)
    files = [data.tokenizer.path, data.held_out.path, *(shard.path for shard in data.shards)]
    num_objects = len(files) + 2

    async def put(number: int, name: str, key: str, raw: bytes) -> None:
        step = Step(name=name, number=number, num_objects=num_objects, num_bytes=len(raw))
        tell(step)
        is_sent = await _put_once(store, key, raw)
        tell(replace(step, stage="sent" if is_sent else "there"))

    try:
        await put(1, "genesis", keys.blob(new.manifest.genesis.blob.sha256), new.genesis)
        for number, path in enumerate(files, start=2):
            raw = path.read_bytes()
            await put(number, path.name, keys.blob(blobs.describe_bytes(raw).sha256), raw)
        await put(num_objects, "manifest", keys.manifest, new.manifest.to_bytes())
    except StorageError as error:
        raise ResourceError(f"the store does not take the new run: {error}") from error


async def _put_once(store: ObjectStore, key: str, raw: bytes) -> bool:
    """False if it was there; keys are named by content, so the length tells a stump from a whole.

    Raises:
        StorageError: the store did not take it.
        ResourceError: something else is there.
    """
    if await _length_of(store, key) is None:
        try:
            await store.put(key, raw)
        except ObjectExistsError:
            # Somebody else was faster, or we may not look.
            pass
        else:
            return True
    num_bytes = (await store.head(key)).num_bytes
    if num_bytes != len(raw):
        raise ResourceError(
            f"the store has {num_bytes} bytes at {key}, where {len(raw)} bytes belong; delete that "
            "object and start again"
        )
    return False


async def _length_of(store: ObjectStore, key: str) -> int | None:
    """None if it is not there; who may not list is told "denied" for that too."""
    try:
        return (await store.head(key)).num_bytes
    except (ObjectNotFoundError, AccessDeniedError):
        return None


def admit(plan: RunPlan, peers: tuple[PeerId, ...]) -> RunPlan:
    """The plan with a roster of exactly these peers."""
    keys = tuple(peer.key for peer in peers)
    return replace(plan, admission=AdmissionSection(mode="roster", peers=keys))
