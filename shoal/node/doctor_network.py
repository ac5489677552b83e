"""What doctor says about the network: every seed step by step, and who can reach this node.

Guarantees: seeds are tried at once and each has its line; nothing is written into the run's store;
a node that is running is left alone: its network is looked at from a second process that does not
listen, in a folder of its own.

Does not do: look a node up that has no network process; it has no such lines.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from shoal.node.bandwidth import has_network
from shoal.node.config import NodeConfig
from shoal.node.doctor_lines import DoctorCode, Level, Line, failure, ok, warning
from shoal.node.errors import StateInUseError
from shoal.node.locks import lock_folder
from shoal.node.network.addresses import parse_seed
from shoal.node.network.client import NetworkClient
from shoal.node.network.dnsaddr import LookUp, dns_look_up, is_dnsaddr, resolve_dnsaddr
from shoal.node.network.finding_messages import Probed, Reach
from shoal.node.network.reaching import SeedSource
from shoal.node.rendezvous import read_seeds
from shoal.node.store_keys import P2P
from shoal.protocol.manifest import RunManifest
from shoal.storage.errors import StorageError
from shoal.storage.object_store import ObjectStore

PROBE_TIMEOUT_S: Final = 45.0
REACH_TIMEOUT_S: Final = 90.0
START_TIMEOUT_S: Final = 120.0
_STEPS: Final = {"tcp": "TCP", "handshake": "handshake", "dht": "DHT", "run": "run id"}
_MENDS: Final = {
    "tcp": "is the address right, is that node running, does a firewall stop you? nc -vz {host} "
    "{port}",
    "handshake": "another node answers there: ask for its address now, the id is behind /p2p/",
    "dht": "that node takes no part in the DHT (client_mode?): use another seed",
    "run": "that node is in another run: use a seed of run {run}",
}


@contextmanager
def beside_a_running_node(config: NodeConfig) -> Iterator[NodeConfig]:
    """The configuration for looking: with a folder of its own where the node is running.

    Args:
        config: of the node.

    Yields:
        It, or one whose network process does not listen.
    """
    if not has_network(config):
        yield config
        return
    try:
        lock = lock_folder(Path(config.state_dir), "the state folder")
    except StateInUseError:
        with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
            network = replace(config.network, client_mode=True)
            yield replace(config, state_dir=folder, network=network)
        return
    with lock:
        yield config


async def check_network(
    manifest: RunManifest,
    config: NodeConfig,
    network: NetworkClient | None,
    store: ObjectStore,
    *,
    is_running: bool,
) -> list[Line]:
    """Every seed, and who can reach this node; nothing where it has no network process.

    Args:
        manifest: of the run.
        config: of the node.
        network: started.
        store: the run's, where validators leave seeds.
        is_running: the node itself is running beside this.
    """
    if network is None:
        return []
    try:
        status = await network.status(START_TIMEOUT_S)
    except StorageError as error:
        fix = f"look at network.log and network.stderr in {config.state_dir}/network"
        return [failure(DoctorCode.NETWORK, f"the network process does not run: {error}", fix)]
    where = ", ".join(status.addresses) or "nowhere, outgoing connections only"
    lines = [ok(DoctorCode.NETWORK, f"libp2p node {status.peer_id} listens at {where}")]
    lines += await _check_seeds(manifest, config, network, store)
    lines.append(await _check_reach(network, is_running=is_running))
    return lines


async def _check_seeds(
    manifest: RunManifest, config: NodeConfig, network: NetworkClient, store: ObjectStore
) -> list[Line]:
    named = dict.fromkeys((SeedSource.FLAG, text) for text in config.network.seeds)
    named |= dict.fromkeys((SeedSource.MANIFEST, text) for text in manifest.endpoints.seeds)
    if config.store.kind != P2P:
        with contextlib.suppress(StorageError):
            bucket = await read_seeds(manifest, store)
            await network.add_seeds(SeedSource.BUCKET, bucket)
            named |= dict.fromkeys((SeedSource.BUCKET, text) for text in bucket)
    if not named:
        found = "no seed in node.toml, manifest or store: this node waits until it is dialled"
        return [warning(DoctorCode.SEED, found, "give it one: --seed, or seeds in [network]")]
    look_up = dns_look_up(config.network.dns_server)
    parts = await asyncio.gather(
        *(_check_named(manifest, network, source, text, look_up) for source, text in named)
    )
    lines = [line for part in parts for line in part]
    if any(line.level is Level.OK for line in lines) or config.store.kind != P2P:
        return lines
    # Without a store besides, nobody to dial means no run.
    return [replace(line, level=Level.FAILURE) for line in lines]


async def _check_named(
    manifest: RunManifest, network: NetworkClient, source: SeedSource, text: str, look_up: LookUp
) -> list[Line]:
    if not is_dnsaddr(text):
        return [await _check_seed(manifest, network, source, text)]
    try:
        found = await resolve_dnsaddr(text, look_up)
    except OSError as error:
        name = text.split("/")[2]
        fix = f"dig TXT _dnsaddr.{name}"
        return [warning(DoctorCode.SEED, f"{source} {text}: {error}", fix)]
    checks = (_check_seed(manifest, network, SeedSource.DNS, one.text) for one in found)
    return list(await asyncio.gather(*checks))


async def _check_seed(
    manifest: RunManifest, network: NetworkClient, source: SeedSource, text: str
) -> Line:
    try:
        address = parse_seed(text)
        probed = await network.probe_seed(source, text, PROBE_TIMEOUT_S)
    except ValueError as error:
        fix = "write it as /ip4/ADDRESS/tcp/PORT/p2p/ID"
        return warning(DoctorCode.SEED, f"{source} {text}: {error}", fix)
    except StorageError as error:
        return warning(DoctorCode.SEED, f"{source} {text}: {error}", "try again")
    found = f"{source} {text}: {describe(probed)}"
    if not probed.failed_step:
        return ok(DoctorCode.SEED, found)
    fix = _MENDS[probed.failed_step].format(
        host=address.host, port=address.port, run=manifest.run_id.hex()[:16]
    )
    return warning(DoctorCode.SEED, found, fix)


def describe(probed: Probed) -> str:
    """Each step with its time, and what stopped it."""
    parts = [f"{_STEPS[step]} {took_ms} ms" for step, took_ms in probed.took_ms.items()]
    if probed.was_connected and "handshake" in probed.took_ms:
        parts = ["connected already", *(one for one in parts if not one.startswith("handshake"))]
    if probed.failed_step:
        parts.append(f"{_STEPS[probed.failed_step]} failed: {probed.detail}")
    return ", ".join(parts) or "this node itself"


async def _check_reach(network: NetworkClient, *, is_running: bool) -> Line:
    if is_running:
        found = "not asked: the node is running, and only it can be dialled at its address"
        return warning(DoctorCode.REACHABLE, found, "stop the node, then start doctor again")
    try:
        return judge_reach(await network.ask_reach(REACH_TIMEOUT_S))
    except StorageError as error:
        return warning(DoctorCode.REACHABLE, f"nobody could say: {error}", "try again")


def judge_reach(reach: Reach) -> Line:
    """What other peers' answers mean for this node."""
    code, ports = DoctorCode.REACHABLE, ", ".join(reach.ports)
    if reach.status == "unasked":
        return ok(code, "outgoing connections only, as client_mode says: the node takes part so")
    if reach.status == "reached":
        return ok(code, f"another peer has dialled this node: {reach.observed}, {ports}")
    if reach.status == "not-reached":
        transport, _, number = (reach.ports[0] if reach.ports else "tcp/4001").partition("/")
        tail = f"tcp/{number}" if transport == "tcp" else f"udp/{number}/quic-v1"
        found = (
            f"only outgoing connections, with which the node takes part: others see it at "
            f"{reach.observed} and cannot dial {ports} there"
        )
        fix = (
            f"set a fixed port in listen, forward it in the router, and in [network] "
            f'announce = ["{reach.observed}/{tail}"]; or client_mode = true'
        )
        return warning(code, found, fix)
    asked = "; ".join(reach.answers) or "no peer is connected"
    return warning(code, f"nobody could say ({asked})", "mend the seeds, or try again in a minute")
