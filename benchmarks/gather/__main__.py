"""Prints Markdown: a gather of 20 payloads of 30 MB against the receiver's own link."""

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.compression.measuring import machine_line
from benchmarks.gather.link import Served, serving
from benchmarks.gather.payloads import Peer, make_manifest, make_peers, object_key
from shoal.compression.warm_up import warm_up
from shoal.node.clock import SystemClock
from shoal.node.gatherer import RoundGather
from shoal.node.run_context import RunContext, make_context
from shoal.node.telemetry.event_log import EventLog
from shoal.protocol.announcement import Where
from shoal.protocol.chain import genesis_head
from shoal.protocol.identity import from_seed
from shoal.protocol.manifest import RunManifest
from shoal.storage.http import HttpLimits, HttpStore
from shoal.storage.memory import MemoryStore
from shoal.storage.meter import Meter

NUM_PEERS = 20
PAYLOAD_BYTES = 30_000_000
FAULTS = ("dead", "stalls", "drips")
_LEGEND = """\
Bound: the arrived payloads' bytes over the link's rate. Carried: the same for all bytes that the
link carried meanwhile, also those of a payload that never came to its end.

| link | peers | arrived | bound | wall | wall / bound | wall / carried | peak memory growth |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Run the named links, or all: about two minutes on two idle cores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gather", description=__doc__)
    parser.add_argument("--megabits", type=float, nargs="*", default=[1000.0, 100.0])
    arguments = parser.parse_args()
    warm_up()
    manifest = make_manifest(PAYLOAD_BYTES)
    peers = make_peers(manifest, NUM_PEERS)
    print(machine_line(), "\n")
    print(_LEGEND)
    for megabits in arguments.megabits:
        for faults in ((), FAULTS):
            _measure(manifest, peers, megabits * 125_000, faults)


def _measure(
    manifest: RunManifest, peers: list[Peer], bytes_per_s: float, faults: tuple[str, ...]
) -> None:
    manners = [*faults, *["well"] * (len(peers) - len(faults))]
    objects = [
        Served(object_key(manifest, peer), peer.raw, manner)
        for peer, manner in zip(peers, manners, strict=True)
    ]
    num_good = manners.count("well")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with serving(objects, bytes_per_s) as ports, tempfile.TemporaryDirectory() as folder:
        wall_s, num_arrived = asyncio.run(_gather(manifest, peers, ports, num_good, Path(folder)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    bound_s = num_good * manifest.payload_bytes / bytes_per_s
    # The one that stalls has sent half of its payload over the same link.
    carried_s = bound_s + ("stalls" in faults) * manifest.payload_bytes / 2 / bytes_per_s
    kinds = f"{num_good} well" + (f", {', '.join(faults)}" if faults else "")
    print(
        f"| {bytes_per_s * 8 / 1e6:.0f} Mb/s | {kinds} | {num_arrived} | {bound_s:.2f} s | "
        f"{wall_s:.2f} s | {wall_s / bound_s:.3f} | {wall_s / carried_s:.3f} | "
        f"{grown / manifest.payload_bytes:.1f} payloads |",
        flush=True,
    )


async def _gather(
    manifest: RunManifest, peers: list[Peer], ports: list[int], num_good: int, folder: Path
) -> tuple[float, int]:
    clock = SystemClock()
    limits = HttpLimits(total_s=600.0, rate_window_s=10.0)
    stores = [HttpStore(f"http://127.0.0.1:{port}", limits) for port in ports]
    by_bucket = {
        f"peer-{peer.identity.peer.key.hex()[:16]}": store
        for peer, store in zip(peers, stores, strict=True)
    }

    def read_at(where: Where) -> HttpStore:
        return by_bucket[where.bucket]

    log = EventLog(folder / "events.jsonl", clock.now_s)
    run = make_context(
        manifest,
        from_seed(bytes([77]) * 32),
        MemoryStore(),
        meter=Meter(time.monotonic),
        clock=clock,
        log=log,
        read_at=read_at,
    )
    await _announce(run, peers)
    gather = RoundGather(run, genesis_head(manifest.run_id, manifest.genesis.root))
    start_s = time.monotonic()
    polling = asyncio.create_task(gather.poll())
    while len(gather.accepted) < num_good and not polling.done():
        gather.changed.clear()
        await gather.changed.wait()
    wall_s = time.monotonic() - start_s
    polling.cancel()
    await asyncio.wait({polling})
    for store in stores:
        await store.close()
    log.close()
    return wall_s, len(gather.accepted)


async def _announce(run: RunContext, peers: list[Peer]) -> None:
    store = run.store.labelled(peer="bench", kind="announcement")
    for peer in peers:
        await store.put(run.keys.published(1, peer.identity.peer), peer.announcement)


if __name__ == "__main__":
    main()
