"""Cuts and kills between real nodes that serve their payloads over libp2p: nothing is lost.

Nodes run in network namespaces where those can be made, and behind proxies elsewhere (the output
says which and why). Every fault is counted; nobody is ever refused for a link or for a process.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fault_swarm import VALIDATOR, lasts
from tests.support.p2p_swarm import (
    NetworkProcesses,
    P2PSwarm,
    is_alive,
    network_of,
    p2p_swarm,
    processes_with,
)
from tests.support.processes import Forge, wait_until

pytestmark = pytest.mark.slow

STEADY, VICTIM = "peer-0", "peer-1"


def cut_a_peer(swarm: P2PSwarm) -> None:
    """Two rounds close without it; then it replays them."""
    met, missed = swarm.links.num_met(VICTIM), swarm.last_round(VICTIM)
    swarm.links.cut(VICTIM)
    swarm.wait_for_round(missed + 3, VALIDATOR, STEADY)
    assert swarm.links.num_met(VICTIM) > met, "it has not tried to reach anybody"
    # What was on its way when it was cut off may have arrived.
    assert swarm.last_round(VICTIM) <= missed + 1
    swarm.links.mend(VICTIM)
    swarm.wait_for_round(missed + 3, VICTIM)
    report = swarm.report(VICTIM, missed + 3)
    assert not report["counted"]


def cut_the_validator(swarm: P2PSwarm) -> None:
    """All wait, longer than every limit of a round; then they go on."""
    limits = swarm.nodes[VALIDATOR].events("node-started")[0]["limits"]
    met = swarm.links.num_met(VALIDATOR)
    swarm.links.cut(VALIDATOR)
    last = {name: swarm.last_round(name) + 1 for name in swarm.peers}
    begin_s = time.monotonic()
    lasts(
        lambda: all(swarm.last_round(name) <= last[name] for name in swarm.peers),
        max(limits.values()) * 1.2,
        "a peer went on without the validator",
    )
    assert time.monotonic() - begin_s > max(limits.values())
    assert swarm.links.num_met(VALIDATOR) > met
    swarm.links.mend(VALIDATOR)


def kill(name: str, which: Callable[[NetworkProcesses], int]) -> Callable[[P2PSwarm], None]:
    """kill -9 of a process of a node's network; it is replaced, and nothing of it is left."""

    def act(swarm: P2PSwarm) -> None:
        node = swarm.nodes[name]
        before = _network(swarm, name)
        os.kill(which(before), signal.SIGKILL)
        wait_until(lambda: network_of(node) not in (None, before), f"{name} has a new network")
        after = _network(swarm, name)
        assert {after.daemon, after.p2pd}.isdisjoint({before.daemon, before.p2pd})
        for pid in (before.daemon, before.p2pd):
            assert not is_alive(pid)

    return act


def _network(swarm: P2PSwarm, name: str) -> NetworkProcesses:
    found: list[NetworkProcesses] = []

    def look() -> bool:
        found[:] = [one for one in [network_of(swarm.nodes[name])] if one is not None]
        return bool(found)

    wait_until(look, f"{name} has a network process and a p2pd")
    return found[0]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens to a running swarm; afterwards everybody counts again."""

    name: str
    happen: Callable[[P2PSwarm], None]


FAULTS = (
    Fault(name="a peer is cut off", happen=cut_a_peer),
    Fault(name="the validator is cut off", happen=cut_the_validator),
    Fault(name="a peer's process ends", happen=kill(VICTIM, lambda found: found.daemon)),
    Fault(name="a peer's p2pd ends", happen=kill(VICTIM, lambda found: found.p2pd)),
    Fault(name="the validator's process ends", happen=kill(VALIDATOR, lambda found: found.daemon)),
    Fault(name="the validator's p2pd ends", happen=kill(VALIDATOR, lambda found: found.p2pd)),
)


def test_cuts_and_kills_stop_nobody_for_good(forge: Forge, tmp_path: Path) -> None:
    with p2p_swarm(forge, tmp_path, num_peers=2, target_peers=2) as swarm:
        for node in swarm.nodes.values():
            node.start()
        for name in swarm.peers:
            swarm.wait_until_counted(name, after=0)
        for fault in FAULTS:
            fault.happen(swarm)
            last = max(swarm.last_round(name) for name in swarm.nodes)
            for name in swarm.peers:
                assert swarm.wait_until_counted(name, after=last), fault.name
        swarm.finish()
        for name, node in swarm.nodes.items():
            assert not node.events("payload-rejected", "record-rejected"), name
        assert processes_with(str(tmp_path)) == []
        sockets = [path for path in tmp_path.rglob("*") if path.is_socket()]
        assert sockets == []
        assert list(swarm.temporary.iterdir()) == []
