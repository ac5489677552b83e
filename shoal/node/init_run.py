"""`shoal init`: a run from a plan into a folder or a bucket.

Guarantees: the store is tried before the long part begins; the manifest file is written last, after
the store has the whole run, so that the same command after an interruption goes on and finishes.

Does not do: change what is there.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from shoal.node.buckets import needed_key, run_bucket
from shoal.node.checkpoint import write_atomically
from shoal.node.config import NodeConfig, RunPlan, load_node_config, load_run_plan
from shoal.node.create_run import Step, make_run, prepare_data, store_run
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.looking import is_there
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocol.identity import PeerId, load_key, parse_peer_text
from shoal.protocol.manifest import RunManifest
from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import AccessDeniedError, ObjectExistsError, StorageError
from shoal.storage.object_store import ObjectStore
from shoal.storage.s3 import S3Store
from shoal.storage.s3_config import S3Limits

# Shards and genesis may take hours on a slow line; what stands still is given up all the same.
_LIMITS = S3Limits(deadline_s=24 * 3600.0)
_TRYING = S3Limits(deadline_s=30.0)

Tell = Callable[[Step], None]


def _nobody(_: Step) -> None:
    """For callers that do not look."""


def init_run(
    plan_file: Path,
    store: Path,
    out: Path,
    validators: list[str],
    work: Path,
    threshold: int,
    tell: Tell = _nobody,
) -> RunManifest:
    """Makes a run and puts it into a folder.

    Args:
        plan_file: the run plan.
        store: root folder of the store.
        out: where the manifest's byte form goes.
        validators: their peer ids as text.
        work: folder for shards and tokenizer.
        threshold: validators that must sign.
        tell: hears of every object.

    Raises:
        ConfigError: the plan or an id is wrong, or `out` exists.
        ResourceError: the store or the disk does not take it.
        DataError: a text is not usable.
    """
    plan = _checked_plan(plan_file, out, threshold)
    if not validators:
        raise ConfigError("command line", "--validator", "a peer id", "nothing")
    ids = tuple(_peer(text) for text in validators)
    return _run(plan, _folder(store), out, ids, work, threshold, tell)


def init_run_at(
    plan_file: Path,
    config_file: Path,
    out: Path,
    validators: list[str],
    work: Path,
    threshold: int,
    tell: Tell = _nobody,
) -> RunManifest:
    """Makes a run and puts it where the `[store]` of a node.toml says.

    Args:
        plan_file: the run plan.
        config_file: the validator's node.toml.
        out: where the manifest's byte form goes.
        validators: their peer ids as text; none: the node of the node.toml.
        work: folder for shards and tokenizer.
        threshold: validators that must sign.
        tell: hears of every object.

    Raises:
        ConfigError: the plan, the node.toml or an id is wrong, there is no key of the bucket, or
            `out` exists.
        ResourceError: the store or the disk does not take it.
        DataError: a text is not usable.
    """
    plan = _checked_plan(plan_file, out, threshold)
    config = load_node_config(config_file)
    match config.store.kind:
        case "directory":
            target = _folder(Path(config.store.path))
        case "s3":
            target = _bucket(config)
        case other:
            expected = '"directory" or "s3": a run is made where the validator writes'
            raise ConfigError(config_file, "store.kind", expected, repr(other))
    ids = tuple(_peer(text) for text in validators) or (_key_of(config),)
    return _run(plan, target, out, ids, work, threshold, tell)


async def create_run(
    plan: RunPlan,
    store: ObjectStore,
    out: Path,
    validators: tuple[PeerId, ...],
    work: Path,
    threshold: int,
    tell: Tell = _nobody,
) -> RunManifest:
    """Makes a run and puts it into an open store.

    Args:
        plan: what whoever starts the run wrote down.
        store: where to.
        out: where the manifest's byte form goes, at the very end.
        validators: who signs records.
        work: folder for shards and tokenizer.
        threshold: validators that must sign.
        tell: hears of every object.

    Raises:
        ConfigError: the plan contradicts itself.
        ResourceError: the store or the disk does not take it.
        DataError: a text is not usable.
    """
    data = await asyncio.to_thread(prepare_data, plan, work)
    new = await asyncio.to_thread(make_run, plan, data, validators, threshold)
    try:
        await store_run(new, data, store, tell)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, new.manifest.to_bytes())
    except OSError as error:
        raise ResourceError(f"{error.filename or out}: {error.strerror}") from error
    return new.manifest


def _checked_plan(plan_file: Path, out: Path, threshold: int) -> RunPlan:
    plan = load_run_plan(plan_file)
    if is_there(out, "--out"):
        raise ConfigError(out, "--out", "a file that does not exist yet", "an existing file")
    if threshold != 1:
        expected = "1: the agreement of several validators is not built yet"
        raise ConfigError("command line", "--threshold", expected, str(threshold))
    return plan


def _run(
    plan: RunPlan,
    target: AbstractContextManager[ObjectStore],
    out: Path,
    validators: tuple[PeerId, ...],
    work: Path,
    threshold: int,
    tell: Tell,
) -> RunManifest:
    with target as store:
        return asyncio.run(create_run(plan, store, out, validators, work, threshold, tell))


@contextmanager
def _folder(path: Path) -> Iterator[ObjectStore]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        store = DirectoryStore(path)
    except OSError as error:
        raise ResourceError(f"{path}: {error.strerror}") from error
    except StorageError as error:
        raise ResourceError(str(error)) from error
    yield store


@contextmanager
def _bucket(config: NodeConfig) -> Iterator[ObjectStore]:
    try:
        place = run_bucket(config)
        key = needed_key(place)
        trying = S3Store(place, key, limits=_TRYING)
        try:
            asyncio.run(_try(trying))
        finally:
            trying.close()
        store = S3Store(place, key, limits=_LIMITS)
    except StorageError as error:
        fix = "check [store] in node.toml, the key in the environment and the network"
        raise ResourceError(f"{error}; {fix}") from error
    try:
        yield store
    finally:
        store.close()


async def _try(store: S3Store) -> None:
    """Shows, before minutes of work, that the bucket takes a run.

    Raises:
        StorageError: it does not take an object.
        ResourceError: it replaces objects that were to be created.
    """
    key = f"shoal-init/{secrets.token_hex(16)}"
    await store.put(key, b"1")
    try:
        await store.put(key, b"2")
    except ObjectExistsError:
        return
    else:
        raise ResourceError(
            "the bucket replaces an object although it was told 'If-None-Match: *': records could "
            "be rewritten; keep the run in a folder, or in a bucket of another provider"
        )
    finally:
        # Who may not delete leaves one byte behind.
        with suppress(AccessDeniedError):
            await store.delete(key)


def _key_of(config: NodeConfig) -> PeerId:
    try:
        return load_key(Path(config.key_file)).peer
    except LocalProtocolError as error:
        expected = "the validator's key, or --validator with a peer id"
        raise ConfigError(config.key_file, "key_file", expected, str(error)) from error


def _peer(text: str) -> PeerId:
    try:
        return parse_peer_text(text)
    except RemoteProtocolError as error:
        expected = "a peer id as `shoal keygen` prints it"
        raise ConfigError("command line", "--validator", expected, f"{text} ({error})") from error
