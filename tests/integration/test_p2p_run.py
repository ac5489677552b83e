"""A run whose peers have neither HTTP nor a bucket, next to one that has both; what is killed."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.node.config import load_run_plan
from shoal.node.swarm_setup import set_up_swarm
from shoal.node.swarm_stores import StoreKind, open_swarm_store, with_endpoints, write_node_toml
from tests.support.background import Background
from tests.support.fault_swarm import toml
from tests.support.http_link import HttpLink
from tests.support.p2p_swarm import NetworkProcesses, wait_for_network
from tests.support.ports import free_port
from tests.support.processes import Forge, Node, all_ended, is_alive, is_round, wait_until
from tests.support.tiny_run import TinyRun, replay, write_plan

# On a busy machine a network process takes half a minute to start, and six are started.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VALIDATOR, BOTH, ALONE, LATE = "validator-0", "peer-0", "peer-1", "peer-2"


@dataclass(kw_only=True)
class Swarm:
    """The nodes, and the one way to the validator's HTTP service."""

    run: TinyRun
    nodes: dict[str, Node]
    link: HttpLink
    background: Background

    def last_round(self, name: str = VALIDATOR) -> int:
        """The last one that a node has applied."""
        rounds = self.nodes[name].events("round")
        return int(rounds[-1]["round_id"]) if rounds else 0

    def wait_until_counted(self, name: str, num_rounds: int) -> None:
        """Until a peer has counted in so many rounds that begin from now on."""
        begins_after = self.last_round()

        def has() -> bool:
            counted = [e for e in self.nodes[name].events("round") if e["counted"]]
            return len([e for e in counted if e["round_id"] > begins_after + 1]) >= num_rounds

        wait_until(has, f"{name} counts {num_rounds} times after round {begins_after}", 240)

    def kill(self, name: str, which: Callable[[NetworkProcesses], int]) -> int:
        """Kills a node's network process or its p2pd; how many died by it."""
        pid = which(wait_for_network(self.nodes[name]))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), f"a process of {name} is gone")
        return 1


@contextmanager
def _swarm(forge: Forge, root: Path) -> Iterator[Swarm]:
    """Sets up; no node runs yet, and none is left behind."""
    plan_file = write_plan(root / "plan", num_rounds=10_000, round_seconds=30.0, target_peers=2)
    plan = with_endpoints(load_run_plan(plan_file), StoreKind.P2P)
    inbox_port = free_port()
    with ExitStack() as held:
        background = held.enter_context(Background())
        link = HttpLink("127.0.0.1", inbox_port)
        background.enter(link.server)
        stores = background.enter(open_swarm_store(StoreKind.P2P, root / "run", 3))
        folder = asyncio.run(set_up_swarm(plan, root / "run", stores))
        alone = stores.peer_tomls[0]
        assert "http" not in alone
        both = alone.replace('kind = "p2p"', f'kind = "http"\nurl = "http://127.0.0.1:{link.port}"')
        serve = toml("serve", listen=f"127.0.0.1:{inbox_port}")
        write_node_toml(folder.validators[0], stores.validator_toml + serve)
        write_node_toml(folder.peers[0], both + toml("payloads", kind="p2p"))
        outgoing = "[network]\nclient_mode = true\n"
        assert "[network]\n" in stores.peer_tomls[2]
        write_node_toml(folder.peers[2], stores.peer_tomls[2].replace("[network]\n", outgoing))
        nodes = {
            path.name: Node(
                forge, path, folder.manifest_file, "validate" if path.name == VALIDATOR else "join"
            )
            for path in folder.nodes
        }
        held.enter_context(all_ended(*nodes.values()))
        run = TinyRun(root=root / "run", manifest=folder.manifest, identities={})
        yield Swarm(run=run, nodes=nodes, link=link, background=background)


def test_rounds_go_on_without_http_and_after_kills_and_a_late_peer_that_only_dials_counts(
    forge: Forge, tmp_path: Path
) -> None:
    with _swarm(forge, tmp_path) as swarm:
        for name in (VALIDATOR, BOTH, ALONE):
            swarm.nodes[name].start()
        swarm.nodes[ALONE].wait_for(is_round(2))
        swarm.nodes[BOTH].wait_for(is_round(2))

        # The validator's HTTP service is away: who can talk libp2p does not need it.
        swarm.background.call(lambda: swarm.link.cut(hangs=False))
        swarm.wait_until_counted(BOTH, 2)
        assert swarm.link.num_cut > 0
        swarm.background.call(swarm.link.mend)

        num_killed = 0
        num_killed += swarm.kill(ALONE, lambda found: found.daemon)
        swarm.wait_until_counted(ALONE, 1)
        num_killed += swarm.kill(VALIDATOR, lambda found: found.p2pd)
        swarm.wait_until_counted(ALONE, 1)
        assert num_killed == 2

        # From genesis over all records and copies, with nothing but the network. Nobody can dial
        # it: what it gives travels over the connections that it has opened.
        swarm.nodes[LATE].start()
        swarm.nodes[LATE].wait_for(is_round(1))
        swarm.wait_until_counted(LATE, 1)
        _finish(swarm)


def _finish(swarm: Swarm) -> None:
    """Ends all nodes, and checks what each ended with against the records in the store."""
    for name in (LATE, ALONE, BOTH, VALIDATOR):
        node = swarm.nodes[name]
        node.send(signal.SIGTERM)
        assert node.wait() == 0, node.output()[-3000:]
        assert "Traceback" not in node.output(), node.output()[-3000:]
        end = node.events("node-stopped")[-1]
        replayed = replay(swarm.run, end["round_id"])
        assert end["state_hash"] == replayed.head.state.hex(), name
        assert end["parameters_root"] == replayed.parameters_root, name
        rounds = [event["round_id"] for event in node.events("round")]
        assert rounds == list(range(1, end["round_id"] + 1)), name
