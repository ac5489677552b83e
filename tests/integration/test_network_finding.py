"""Real network processes find each other: by DNS, store and multiaddr, over IPv6, after a sleep."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.doctor_lines import Level
from shoal.node.doctor_network import describe, judge_reach
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.joining import find_home
from shoal.node.joining_by_address import fetch_by_address
from shoal.node.network.client import NetworkClient
from shoal.node.network.dnsaddr import dns_look_up, resolve_dnsaddr
from shoal.node.network.messages import Start
from shoal.node.network.reaching import SeedSource
from shoal.node.rendezvous import Rendezvous, join_argument, read_seeds
from shoal.node.store_keys import StoreKeys
from shoal.protocol.manifest import EndpointsSection
from shoal.storage.directory import DirectoryStore
from tests.integration.test_network_processes import in_loop, source_of, until_status
from tests.support.dns_server import dns_server
from tests.support.manifests import VALIDATOR, peer, tiny_manifest

pytestmark = pytest.mark.slow

MANIFEST = tiny_manifest(endpoints=EndpointsSection(allow_loopback=True))


def options(folder: Path, *seeds: str, **changes: object) -> Start:
    values = {"folder": str(folder), "run_id": MANIFEST.run_id, "round_ms": 60_000}
    return Start(**{**values, "seeds": seeds, "allow_private": True, **changes})  # type: ignore[arg-type] # by name


async def until_served(network: NetworkClient) -> None:
    await until_status(network, lambda status: status.num_served >= 2, 120)


@in_loop
async def test_a_run_is_joined_by_the_address_of_any_of_its_peers(tmp_path: Path) -> None:
    async with NetworkClient(options(tmp_path / "a"), peer(1)) as network:
        place = source_of(await network.status())[0]
        meeting = asyncio.create_task(
            Rendezvous(MANIFEST, network, None, peer(1).peer).run(tmp_path / "manifest.json")
        )
        await until_served(network)
        home = await find_home(place, tmp_path / "home", 1)
        assert (home.manifest, home.is_pinned, home.is_new) == (MANIFEST, False, True)
        pinned = await find_home(f"{place}#{MANIFEST.run_id.hex()}", tmp_path / "home", 1)
        assert (pinned.is_pinned, pinned.is_new) == (True, False)
        # Another run's id: the peer says that it is in another run.
        with pytest.raises(ResourceError, match="of another run"):
            await find_home(f"{place}#{'0' * 64}", tmp_path / "home", 1)
        # Another manifest under the id that was asked for does not pass.
        forged = tmp_path / "forged"
        forged.write_bytes(tiny_manifest(version=2, first=MANIFEST.run_id).to_bytes())
        await network.serve_file(MANIFEST.run_id, forged)
        with pytest.raises(ConfigError, match="run id"):
            await find_home(f"{place}#{MANIFEST.run_id.hex()}", tmp_path / "other", 1)
        assert not (tmp_path / "other").exists()
        meeting.cancel()
    with pytest.raises(ResourceError, match="gives no manifest"):
        await fetch_by_address(place, None)


@in_loop
async def test_seeds_come_from_dns_and_from_what_a_validator_left_in_the_store(
    tmp_path: Path,
) -> None:
    store, keys = DirectoryStore(tmp_path), StoreKeys(MANIFEST.run_id)
    async with NetworkClient(options(tmp_path / "v"), VALIDATOR) as first:
        places = source_of(await first.status())
        writing = Rendezvous(MANIFEST, first, store, VALIDATOR.peer)
        async with asyncio.timeout(120):
            while not await read_seeds(MANIFEST, store):
                await writing.step(await first.status())
                await asyncio.sleep(0.1)
        assert await read_seeds(MANIFEST, store) == places
        assert join_argument(places, MANIFEST) == f"{places[0]}#{MANIFEST.run_id.hex()}"

        async with NetworkClient(options(tmp_path / "b"), peer(2)) as second:
            reading = Rendezvous(MANIFEST, second, store, peer(2).peer)
            await reading.step(await second.status())
            line = f"bucket {places[0]}: connected"
            status = await until_status(second, lambda status: line in status.seeds, 120)
            # A process that ends is told again.
            os.kill(status.process_id, signal.SIGKILL)
            await until_status(
                second,
                lambda now: now.process_id != status.process_id and now.num_connected > 0,
                120,
            )

        records = {"_dnsaddr.run.test": ["dnsaddr=/dnsaddr/eu.run.test", "v=spf1"]}
        records["_dnsaddr.eu.run.test"] = [f"dnsaddr={place}" for place in places]
        async with dns_server(records) as server:
            look_up = dns_look_up(server.address)
            found = await resolve_dnsaddr("/dnsaddr/run.test", look_up)
            assert tuple(one.text for one in found) == places
            with pytest.raises(OSError, match="no TXT records"):
                await resolve_dnsaddr("/dnsaddr/gone.test", look_up)
            asked = len(server.asked)
            wanted = options(tmp_path / "c", "/dnsaddr/run.test", dns_server=server.address)
            async with NetworkClient(wanted, peer(3)) as third:
                line = f"dns {places[0]}: connected"
                await until_status(third, lambda status: line in status.seeds, 120)
            assert len(server.asked) > asked

        # What nobody of the manifest has signed is no seed.
        await store.put(keys.seeds(VALIDATOR.peer), b"not a record", overwrite=True)
        assert await read_seeds(MANIFEST, store) == ()


@in_loop
async def test_each_step_of_a_seed_is_told_apart_and_peers_dial_back(tmp_path: Path) -> None:
    ipv6 = ("/ip6/::1/tcp/0",)
    async with (
        NetworkClient(options(tmp_path / "a", listen=ipv6), peer(1)) as first,
        NetworkClient(options(tmp_path / "x", run_id=bytes(32), listen=ipv6), peer(9)) as other_run,
    ):
        place = source_of(await first.status())[0]
        assert place.startswith("/ip6/::1/tcp/")
        elsewhere = source_of(await other_run.status())[0]
        async with NetworkClient(options(tmp_path / "b", place, listen=ipv6), peer(2)) as second:
            await until_status(second, lambda status: status.routing_table_size > 0, 120)

            async def probe(text: str) -> tuple[str, str]:
                probed = await second.probe_seed(SeedSource.FLAG, text, 100)
                return probed.failed_step, describe(probed)

            step, text = await probe(place)
            assert step == ""
            assert text.startswith("connected already, TCP")
            libp2p_id = place.rsplit("/", 1)[1]
            assert (await probe(f"/ip6/::1/tcp/1/p2p/{libp2p_id}"))[0] == "tcp"
            wrong_id = f"{elsewhere.rsplit('/', 1)[0]}/{'Qm' + 'a' * 44}"
            assert (await probe(wrong_id))[0] == "handshake"
            step, text = await probe(elsewhere)
            assert (step, text.rsplit(": ", 1)[1]) == ("run", "the peer is of another run")
            with pytest.raises(ValueError, match="address"):
                await probe("nonsense")

            reach = await second.ask_reach(100)
            assert (reach.status, reach.observed) == ("reached", "/ip6/::1")
            assert judge_reach(reach).level is Level.OK
            assert (await second.ask_reach(100)).status in {"nobody", "reached"}

        mute = options(tmp_path / "c", place, client_mode=True)
        async with NetworkClient(mute, peer(3)) as third:
            await until_status(third, lambda status: status.num_connected > 0, 120)
            assert (await third.ask_reach(100)).status == "unasked"

        # It says that it listens where nobody can dial it, as behind a router.
        hidden = options(tmp_path / "d", place, listen=ipv6, announce=("/ip6/::1/tcp/9",))
        async with NetworkClient(hidden, peer(4)) as fourth:
            await until_status(fourth, lambda status: status.num_connected > 0, 120)
            async with asyncio.timeout(120):
                while (reach := await fourth.ask_reach(100)).status == "nobody":  # noqa: ASYNC110 - polls
                    await asyncio.sleep(1)
            line = judge_reach(reach)
            assert (reach.status, line.level) == ("not-reached", Level.WARNING)
            assert 'announce = ["/ip6/::1/tcp/9"]' in line.fix


@in_loop
async def test_after_a_sleep_it_finds_its_peers_again_and_is_found(tmp_path: Path) -> None:
    async with NetworkClient(options(tmp_path / "a"), peer(1)) as first:
        place = source_of(await first.status())[0]
        async with NetworkClient(options(tmp_path / "b", place), peer(2)) as second:
            before = await until_status(second, lambda status: status.routing_table_size > 0, 120)
            # Its process and its p2pd stop, as on a laptop that is closed.
            os.killpg(before.process_id, signal.SIGSTOP)
            await asyncio.sleep(13)
            os.killpg(before.process_id, signal.SIGCONT)
            log = tmp_path / "b" / "network.log"
            async with asyncio.timeout(120):
                while "slept" not in log.read_text():  # noqa: ASYNC110 - polls
                    await asyncio.sleep(0.2)
            line = f"flag {place}: connected"
            await until_status(second, lambda status: line in status.seeds, 120)
            async with asyncio.timeout(120):
                while await first.find_peer(peer(2).peer) is None:  # noqa: ASYNC110 - polls
                    await asyncio.sleep(0.5)


IPV6_ONLY = """
import asyncio, socket, sys
from shoal.node.config import NetworkConfig
from shoal.node.network.client import NetworkClient
from shoal.node.network.messages import Start
from shoal.protocol.identity import from_seed

def options(folder, *seeds):
    listen = NetworkConfig().listen
    return Start(folder=folder, run_id=bytes(32), round_ms=60_000, allow_private=True,
                 listen=listen, seeds=seeds)

async def main():
    try:
        socket.create_connection(("127.0.0.1", 9), 1)
    except OSError as error:
        print("no IPv4:", error.errno)
    async with NetworkClient(options(sys.argv[1] + "/a"), from_seed(b"a" * 32)) as first:
        status = await first.status()
        places = [f"{one}/p2p/{status.peer_id}" for one in status.addresses]
        wanted = options(sys.argv[1] + "/b", *places)
        async with NetworkClient(wanted, from_seed(b"b" * 32)) as second:
            for _ in range(300):
                status = await second.status()
                if status.routing_table_size:
                    break
                await asyncio.sleep(0.2)
            print("peers:", status.routing_table_size, *status.seeds)

asyncio.run(main())
"""


def test_it_works_with_ipv6_only(tmp_path: Path) -> None:
    ip = shutil.which("ip")
    if os.geteuid() != 0 or ip is None:
        pytest.skip("a network namespace needs root and the ip command")
    name = f"shoal{os.getpid()}"
    made = subprocess.run([ip, "netns", "add", name], check=False, capture_output=True)
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.decode()}")
    try:
        subprocess.run([ip, "-n", name, "link", "set", "lo", "up"], check=True)
        subprocess.run([ip, "-n", name, "addr", "del", "127.0.0.1/8", "dev", "lo"], check=True)
        done = subprocess.run(
            [ip, "netns", "exec", name, sys.executable, "-c", IPV6_ONLY, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    finally:
        subprocess.run([ip, "netns", "del", name], check=True)
    assert "no IPv4: 101" in done.stdout, done.stderr
    assert "peers: 1" in done.stdout, done.stdout + done.stderr
    assert "/ip6/::1/" in done.stdout
