"""Cuts and kills between real nodes that serve their payloads over libp2p: nothing is lost.

Nodes run in network namespaces where those can be made, and behind proxies elsewhere (the output
says which and why). Every fault is counted; nobody is ever refused for a link or for a process.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.node.store_keys import StoreKeys
from shoal.protocol.identity import load_key
from shoal.protocol.payload_header import peek
from tests.support.fault_swarm import VALIDATOR, lasts
from tests.support.p2p_attacker import P2PAttacker, any_payload, p2p_attacker
from tests.support.p2p_swarm import (
    NetworkProcesses,
    P2PSwarm,
    network_of,
    p2p_swarm,
    processes_with,
    wait_for_network,
)
from tests.support.processes import Forge, is_alive, wait_until

# On a machine with other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEADY, VICTIM = "peer-0", "peer-1"


def cut_a_peer(swarm: P2PSwarm) -> None:
    """Two rounds close without it; then it replays them."""
    swarm.links.cut(VICTIM)
    # After the cut, which on a busy machine is more than a round later than the wish for it.
    met, missed = swarm.links.num_met(VICTIM), swarm.last_round(VICTIM)
    swarm.wait_for_round(missed + 3, VALIDATOR, STEADY)
    assert swarm.links.num_met(VICTIM) > met, "it has not tried to reach anybody"
    # What was on its way when it was cut off may have arrived.
    assert swarm.last_round(VICTIM) <= missed + 1 or not swarm.links.is_total
    swarm.links.mend(VICTIM)
    swarm.wait_for_round(missed + 3, VICTIM)
    assert not swarm.report(VICTIM, missed + 3)["counted"] or not swarm.links.is_total


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
        before = wait_for_network(node)
        os.kill(which(before), signal.SIGKILL)
        wait_until(lambda: network_of(node) not in (None, before), f"{name} has a new network")
        after = wait_for_network(node)
        assert {after.daemon, after.p2pd}.isdisjoint({before.daemon, before.p2pd})
        for pid in (before.daemon, before.p2pd):
            wait_until(lambda pid=pid: not is_alive(pid), "nothing is left", 30)  # type: ignore[misc] # bound now

    return act


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
        wait_until(lambda: not processes_with(str(tmp_path)), "nothing is left", 30)
        sockets = [path for path in tmp_path.rglob("*") if path.is_socket()]
        assert sockets == []
        assert list(swarm.temporary.iterdir()) == []


HTML = b"<!DOCTYPE html><html><body>Sign in to this network</body></html>"


@dataclass(frozen=True, kw_only=True)
class ServedFault:
    """What a peer serves instead of the payload that it has announced."""

    name: str
    serve: Callable[[bytes, bytes], bytes]
    """From the announced payload and another one of the same peer and round."""
    code: str


SERVED_FAULTS = (
    ServedFault(
        name="a flipped bit",
        serve=lambda good, _: good[:-7] + bytes([good[-7] ^ 1]) + good[-6:],
        code="E_BODY_HASH",
    ),
    ServedFault(name="half", serve=lambda good, _: good[: len(good) // 2], code="E_LEN"),
    ServedFault(name="more", serve=lambda good, _: good + b"\0", code="E_LEN"),
    ServedFault(name="a page", serve=lambda _, __: HTML, code="E_LEN"),
    ServedFault(name="another one", serve=lambda _, other: other, code="E_EQUIVOCATION"),
)


def open_round(swarm: P2PSwarm) -> tuple[int, bytes]:
    """While the only honest peer is stopped: the round that stays open, and its base state."""
    seen: list[int] = []
    honest = load_key(swarm.nodes[STEADY].folder / "key.pem").peer
    keys = StoreKeys(swarm.folder.manifest.run_id)

    def is_still() -> bool:
        seen.append(swarm.last_round())
        # What was on its way may still arrive, and what has arrived closes the round.
        announced = swarm.root / "store" / (keys.published(seen[-1] + 1, honest) + "+")
        return len(seen) > 25 and len(set(seen[-25:])) == 1 and not announced.exists()

    wait_until(is_still, "rounds stand still", poll_s=0.1)
    report = swarm.report(VALIDATOR, seen[-1])
    return seen[-1] + 1, bytes.fromhex(report["state_hash"])


@contextmanager
def stopped(swarm: P2PSwarm) -> Iterator[None]:
    """Holds the honest peer, and with it the round."""
    swarm.nodes[STEADY].send(signal.SIGSTOP)
    try:
        yield
    finally:
        swarm.nodes[STEADY].send(signal.SIGCONT)


def verdicts(swarm: P2PSwarm, observer: str, attacker: P2PAttacker, round_id: int) -> list[str]:
    """Codes with which a node has refused the attacker's payload of a round."""
    return [
        event["code"]
        for event in swarm.nodes[observer].events("payload-rejected")
        if (event["peer"], event["round_id"]) == (attacker.key_hex, round_id)
    ]


def serve_badly(swarm: P2PSwarm, attacker: P2PAttacker, fault: ServedFault) -> int:
    """One round with a fault; the honest peer counts in it. Gives the round."""
    like = any_payload(swarm)
    with stopped(swarm):
        round_id, base_state = open_round(swarm)
        good = attacker.payload(round_id, base_state, like)
        other = attacker.payload(round_id, base_state, like, tokens=65)
        attacker.serve(good, fault.serve(good, other))
        attacker.announce(good)
        wait_until(
            lambda: bool(verdicts(swarm, VALIDATOR, attacker, round_id)),
            f"{fault.name} is refused",
            poll_s=0.1,
        )
    assert verdicts(swarm, VALIDATOR, attacker, round_id) == [fault.code], fault.name
    swarm.wait_for_round(round_id, VALIDATOR, STEADY)
    return round_id


def replace_after_it_counted(swarm: P2PSwarm, attacker: P2PAttacker) -> None:
    """What the validator has taken counts for all, whatever its author serves afterwards."""
    like = any_payload(swarm)
    with stopped(swarm):
        round_id, base_state = open_round(swarm)
        good = attacker.payload(round_id, base_state, like)
        attacker.serve(good, good)
        attacker.announce(good)
        copy = swarm.folder.manifest.run_id.hex() + f"/copies/{peek(good).payload_id.hex()}+"
        wait_until((swarm.root / "store" / copy).exists, "the validator has it", poll_s=0.1)
        attacker.serve(good, attacker.payload(round_id, base_state, like, tokens=65))
    swarm.wait_for_round(round_id, VALIDATOR, STEADY)
    assert not verdicts(swarm, VALIDATOR, attacker, round_id)
    # At the end all parameters are compared with what the records lead to.
    assert swarm.report(STEADY, round_id)["num_counted"] >= 1


def say_nothing(swarm: P2PSwarm, attacker: P2PAttacker) -> None:
    """A host that hangs delays nobody, and is refused by nobody."""
    like = any_payload(swarm)
    with stopped(swarm):
        round_id, base_state = open_round(swarm)
        good = attacker.payload(round_id, base_state, like)
        attacker.serve(good, good)
        with attacker.silent():
            attacker.announce(good)
            about = f"payload of {attacker.key_hex[:16]} not readable"

            def has_complained() -> bool:
                warnings = swarm.nodes[VALIDATOR].events("warning")
                return any(about in event["message"] for event in warnings)

            wait_until(has_complained, "the validator waits in vain", poll_s=0.1)
            swarm.nodes[STEADY].send(signal.SIGCONT)
            swarm.wait_for_round(round_id, VALIDATOR, STEADY)


def test_whoever_serves_bad_bytes_loses_the_round_and_nobody_else_does(
    forge: Forge, tmp_path: Path
) -> None:
    with p2p_swarm(forge, tmp_path, num_peers=2, target_peers=1, round_seconds=30.0) as swarm:
        for name in (VALIDATOR, STEADY):
            swarm.nodes[name].start()
        swarm.wait_until_counted(STEADY, after=0)
        with p2p_attacker(swarm, VICTIM) as attacker:
            for fault in SERVED_FAULTS:
                round_id = serve_badly(swarm, attacker, fault)
                assert swarm.report(STEADY, round_id)["counted"], fault.name
                assert swarm.report(STEADY, round_id)["num_counted"] == 1, fault.name
            replace_after_it_counted(swarm, attacker)
            say_nothing(swarm, attacker)
        swarm.wait_until_counted(STEADY, after=swarm.last_round())
        swarm.finish(VICTIM)
        refused = {
            (event["peer"], event["code"])
            for name in (VALIDATOR, STEADY)
            for event in swarm.nodes[name].events("payload-rejected")
        }
        assert refused == {(attacker.key_hex, fault.code) for fault in SERVED_FAULTS}
