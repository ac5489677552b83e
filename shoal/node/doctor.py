"""`shoal doctor`: will this node work in this run, before it tries.

Guarantees: nothing of the run is changed but one small object of this node's own; every line is ok,
a warning or a failure, with a code, the cause and what mends it; a check that cannot be made is a
warning that says so, never silence; one failing check does not hide the others.

Does not do: mend anything. Every code has its page in `docs/doctor.md`.
"""

import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

from shoal.node.buckets import written_bucket
from shoal.node.clock import MAX_CLOCK_ERROR_S, SystemClock
from shoal.node.config import NodeConfig
from shoal.node.doctor_bandwidth import check_bandwidth
from shoal.node.doctor_lines import DoctorCode, Level, Line, failure, ok, size_text, warning
from shoal.node.doctor_machine import check_device, check_disk, check_memory
from shoal.node.doctor_network import beside_a_running_node, check_network
from shoal.node.errors import NodeError
from shoal.node.places import Places, open_places
from shoal.node.store_keys import StoreKeys
from shoal.protocol.errors import ErrorCode, LocalProtocolError
from shoal.protocol.identity import Identity, load_key
from shoal.protocol.manifest import BlobSection, RunManifest
from shoal.storage.errors import ObjectNotFoundError, RefusedError, StorageError
from shoal.storage.provider_check import check_bucket

_PROBE_BYTES = 4 << 20


async def examine(manifest: RunManifest, config: NodeConfig) -> list[Line]:
    """Makes every check and returns a line for each.

    Args:
        manifest: of the run that the node wants to join.
        config: of the node.
    """
    lines = _check_identity(manifest, config)
    lines.append(check_disk(manifest, Path(config.state_dir)))
    lines.append(check_memory(manifest))
    lines.append(check_device(manifest, config.device))
    lines += check_bandwidth(manifest, config, trains=not _is_validator(manifest, config))
    fix = "check [store], [payloads] and [network] in node.toml"
    async with AsyncExitStack() as held:
        try:
            identity = load_key(Path(config.key_file))
            looking = held.enter_context(beside_a_running_node(config))
            places = await open_places(manifest, looking, identity, held)
        except LocalProtocolError:
            found = "not asked: it takes the key"
            return [*lines, warning(DoctorCode.STORE, found, "mend D_KEY first")]
        except NodeError as error:
            return [*lines, failure(DoctorCode.STORE, str(error), fix)]
        # First: with a store that is the network, everything else needs a peer.
        lines += await check_network(
            manifest, looking, places.network, places.served, is_running=looking is not config
        )
        lines += await _check_store(manifest, config, places)
    return lines + await _check_bucket(manifest, config)


def _is_validator(manifest: RunManifest, config: NodeConfig) -> bool:
    try:
        return load_key(Path(config.key_file)).peer in manifest.validator_ids
    except LocalProtocolError:
        # D_KEY says so.
        return False


def _check_identity(manifest: RunManifest, config: NodeConfig) -> list[Line]:
    try:
        identity = load_key(Path(config.key_file))
    except LocalProtocolError as error:
        return [failure(DoctorCode.KEY, str(error), _mend_key(Path(config.key_file)))]
    key = ok(DoctorCode.KEY, f"{config.key_file}: peer {identity.peer.text}")
    return [key, _check_role(manifest, identity)]


def _mend_key(file: Path) -> str:
    """A new key only where there is none: another key is another peer."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return f"shoal keygen {file}"
    if stat.S_ISREG(mode) and mode & 0o077:
        return f"chmod 600 {file}"
    new = f"mv {file} {file}.bad && shoal keygen {file}"
    return f"put your copy of the key there; without one: {new}"


def _check_role(manifest: RunManifest, identity: Identity) -> Line:
    if identity.peer in manifest.validator_ids:
        return ok(DoctorCode.ROLE, "this key is a validator of the run: start it with validate")
    roster = manifest.roster
    if roster is None:
        return ok(DoctorCode.ROLE, "the run is open to everybody")
    if identity.peer in roster:
        return ok(DoctorCode.ROLE, "this key is in the run's roster")
    fix = f"ask whoever runs it to add {identity.peer.text}"
    return failure(DoctorCode.ROLE, f"not in the roster of {len(roster)} peers", fix)


async def _check_store(manifest: RunManifest, config: NodeConfig, places: Places) -> list[Line]:
    keys = StoreKeys(manifest.run_id)
    lines = [await _guarded(DoctorCode.STORE, lambda: _check_manifest(manifest, keys, places))]
    if lines[0].level is Level.FAILURE:
        return lines
    lines.append(await _guarded(DoctorCode.CLOCK, lambda: _check_clock(config, keys, places)))
    lines.append(await _guarded(DoctorCode.DATA, lambda: _check_data(manifest, keys, places)))
    lines.append(await _guarded(DoctorCode.UPLOAD, lambda: _check_upload(manifest, keys, places)))
    lines.append(
        await _guarded(DoctorCode.DOWNLOAD, lambda: _check_download(manifest, keys, places))
    )
    return lines


async def _check_bucket(manifest: RunManifest, config: NodeConfig) -> list[Line]:
    """What the bucket that this node writes to can do, if it writes to one."""
    try:
        written = written_bucket(manifest, config)
    except (NodeError, StorageError) as error:
        return [failure(DoctorCode.BUCKET, str(error), "set the two variables and start again")]
    if written is None:
        return []
    identity = load_key(Path(config.key_file))
    keys = StoreKeys(manifest.run_id)
    if config.payloads.kind == "s3":
        folder = keys.payloads(identity.peer).rstrip("/")
        found = await check_bucket(*written, purpose="payloads", folder=folder)
    else:
        found = await check_bucket(*written, folder=keys.probe("bucket"))
    return [
        Line(
            code=DoctorCode.BUCKET,
            level=Level(line.level),
            found=f"{line.code}: {line.what}{': ' if line.cause else ''}{line.cause}",
            fix=line.fix,
        )
        for line in found
    ]


async def _guarded(code: DoctorCode, check: Callable[[], Awaitable[Line]]) -> Line:
    try:
        return await check()
    except (StorageError, TimeoutError, NodeError, LocalProtocolError) as error:
        fix = "check [store] in node.toml and the network"
        if code in (DoctorCode.UPLOAD, DoctorCode.DOWNLOAD):
            fix = "try again; if it stays so, use a faster link: 64 KiB/s are the least"
        return failure(code, str(error), fix)


async def _check_manifest(manifest: RunManifest, keys: StoreKeys, places: Places) -> Line:
    expected = manifest.to_bytes()
    try:
        found = await places.run.get(keys.manifest, max_bytes=len(expected))
    except ObjectNotFoundError:
        fix = "is this the store that `shoal init` wrote to?"
        return failure(DoctorCode.STORE, f"the store does not know run {keys.run_id.hex()}", fix)
    except RefusedError as error:
        if error.code != ErrorCode.E_RUN:
            raise
        fix = "use the manifest.json of the run that is served there, or its right address"
        other = f"E_RUN another run is served there, not {keys.run_id.hex()}"
        return failure(DoctorCode.STORE, other, fix)
    if found != expected:
        return failure(DoctorCode.STORE, "the store has another manifest", "get the run's own one")
    return ok(DoctorCode.STORE, f"answers, and knows run {keys.run_id.hex()[:16]}")


async def _check_clock(config: NodeConfig, keys: StoreKeys, places: Places) -> Line:
    clock = SystemClock(config.clock_offset_s)
    identity = load_key(Path(config.key_file))
    before_s = clock.now_s()
    theirs_s = await places.time_s(keys.hello(identity.peer))
    offset_s = clock.now_s() / 2 + before_s / 2 - theirs_s
    found = f"{offset_s:+.1f} s against the store's"
    if abs(offset_s) > MAX_CLOCK_ERROR_S:
        right_s = round(config.clock_offset_s - offset_s)
        fix = f"timedatectl set-ntp true; or clock_offset_s = {right_s} in node.toml"
        return failure(DoctorCode.CLOCK, found, fix)
    return ok(DoctorCode.CLOCK, found)


async def _check_data(manifest: RunManifest, keys: StoreKeys, places: Places) -> Line:
    blobs = (*manifest.data.shards, manifest.data.held_out, manifest.genesis.blob)
    missing = [blob for blob in blobs if not await _is_there(blob, keys, places)]
    if missing:
        found = f"{len(missing)} of {len(blobs)} objects are missing or of another length"
        return failure(DoctorCode.DATA, found, "tell whoever runs it: `shoal init` uploads them")
    return ok(
        DoctorCode.DATA, f"{len(blobs)} objects, {size_text(sum(b.num_bytes for b in blobs))}"
    )


async def _is_there(blob: BlobSection, keys: StoreKeys, places: Places) -> bool:
    try:
        return (await places.run.head(keys.blob(blob.sha256))).num_bytes == blob.num_bytes
    except ObjectNotFoundError:
        return False


async def _check_upload(manifest: RunManifest, keys: StoreKeys, places: Places) -> Line:
    size = min(_PROBE_BYTES, manifest.payload_bytes)
    data = np.random.default_rng(0).bytes(size)
    start_s = time.monotonic()
    await places.probe_upload(keys, data)
    seconds = (time.monotonic() - start_s) * manifest.payload_bytes / size
    return _against_round(DoctorCode.UPLOAD, "upload", seconds, manifest)


async def _check_download(manifest: RunManifest, keys: StoreKeys, places: Places) -> Line:
    blob = max((*manifest.data.shards, manifest.genesis.blob), key=lambda b: b.num_bytes)
    size = min(_PROBE_BYTES, blob.num_bytes)
    start_s = time.monotonic()
    await places.run.get(keys.blob(blob.sha256), max_bytes=size, start=0, length=size)
    per_byte_s = (time.monotonic() - start_s) / size
    gathered = manifest.payload_bytes * (manifest.outer.gather_limit - 1)
    return _against_round(DoctorCode.DOWNLOAD, "gather", per_byte_s * gathered, manifest)


def _against_round(code: DoctorCode, what: str, seconds: float, manifest: RunManifest) -> Line:
    round_s = manifest.timing.round_seconds
    found = f"a round's {what} takes {seconds:.1f} s of your {round_s:.0f} s"
    fix = "use a faster link, or a run with smaller payloads or longer rounds"
    if seconds > round_s / 2:
        return failure(code, found, fix)
    if seconds > round_s / 5:
        return warning(code, found, fix)
    return ok(code, found)
