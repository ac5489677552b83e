"""The faults of a soak: a seeded schedule, and what each of them does.

Guarantees: every kind comes up before any comes up again; a fault is noted with what it hit and
with what proves that it happened, and is healed even if the soak is broken off.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from benchmarks.soak.processes import find_child
from benchmarks.soak.swarm import SoakNode, Swarm
from benchmarks.soak.waiting import happens
from tests.support.processes import is_alive, state_of
from tests.support.shaping_proxy import Link, ShapingProxy

_SLOW_BYTES_PER_S = 3000.0
_RESET_AFTER_BYTES = 3000
_PATIENCE_S = 180.0
"""What a fault is for may just start after the one before: half a minute on a busy machine."""


class FaultKind(StrEnum):
    """What can go wrong."""

    KILL_PEER = "kill-peer"
    KILL_NETWORK = "kill-network"
    KILL_P2PD = "kill-p2pd"
    KILL_VALIDATOR = "kill-validator"
    KILL_STORE = "kill-store"
    FREEZE_PEER = "freeze-peer"
    FREEZE_P2PD = "freeze-p2pd"
    CUT_STORE_LINK = "cut-store-link"
    CUT_INBOX_LINK = "cut-inbox-link"
    CUT_LIBP2P_LINK = "cut-libp2p-link"
    SLOW_LINKS = "slow-links"
    RESET_LINKS = "reset-links"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One entry of the schedule."""

    kind: FaultKind
    draw: float
    """In [0, 1): which of the nodes that it may hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was done."""

    kind: FaultKind
    target: str
    began_at_s: float
    """Unix seconds."""
    ended_at_s: float
    proof: str
    """What shows that it happened; empty if it did not."""


def schedule(seed: int) -> Iterator[Planned]:
    """Faults without end: all kinds in random order, then all again in another."""
    draw = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    while True:
        kinds = list(FaultKind)
        draw.shuffle(kinds)
        for kind in kinds:
            yield Planned(kind=kind, draw=draw.random())


async def inject(swarm: Swarm, planned: Planned, hold_s: float) -> Fault:
    """Does one fault and heals it.

    Args:
        swarm: what is hit.
        planned: of the schedule.
        hold_s: how long it lasts, for those that last.
    """
    kind, node = planned.kind, _target(swarm, planned)
    began_at_s = time.time()
    match kind:
        case FaultKind.KILL_PEER | FaultKind.KILL_VALIDATOR:
            proof = await _kill_node(node)
        case FaultKind.KILL_NETWORK:
            proof = await _kill_child(swarm, node, "network")
        case FaultKind.KILL_P2PD:
            proof = await _kill_child(swarm, node, "p2pd")
        case FaultKind.KILL_STORE:
            proof = f"process {await swarm.store.kill()} ended"
            await swarm.restart_store()
        case FaultKind.FREEZE_PEER:
            proof = await _freeze(node.node.pid, hold_s * 2 / 3)
        case FaultKind.FREEZE_P2PD:
            proof = await _freeze(await _child(swarm, node, "p2pd"), hold_s * 2 / 3)
        case FaultKind.CUT_STORE_LINK:
            proof = await _change([node.links.store], Link(is_cut=True), hold_s)
        case FaultKind.CUT_INBOX_LINK:
            inboxes = [] if node.links.inbox is None else [node.links.inbox]
            proof = await _change(inboxes, Link(is_cut=True), hold_s)
        case FaultKind.CUT_LIBP2P_LINK:
            proof = await _change([node.links.libp2p], Link(is_cut=True), hold_s)
        case FaultKind.SLOW_LINKS:
            link = Link(bytes_per_s=_SLOW_BYTES_PER_S, latency_s=0.2)
            proof = await _change(node.links.all, link, hold_s)
        case FaultKind.RESET_LINKS:
            link = Link(drop_after_bytes=_RESET_AFTER_BYTES, drop_up_after_bytes=_RESET_AFTER_BYTES)
            proof = await _change(node.links.all, link, hold_s)
    target = "store" if kind is FaultKind.KILL_STORE else node.name
    return Fault(
        kind=kind, target=target, began_at_s=began_at_s, ended_at_s=time.time(), proof=proof
    )


def _target(swarm: Swarm, planned: Planned) -> SoakNode:
    if planned.kind is FaultKind.KILL_VALIDATOR:
        return swarm.validator
    peers = swarm.peers
    match planned.kind:
        case FaultKind.CUT_STORE_LINK | FaultKind.CUT_INBOX_LINK:
            # Peers on libp2p would miss no more than others' payloads.
            peers = [node for node in peers if node.kind == "s3"]
        case FaultKind.CUT_LIBP2P_LINK:
            # Of a connection between two it is chance which of them has opened it.
            peers = [one for one in peers if one.kind == "p2p" and one.links.libp2p.num_open]
            peers = peers or swarm.peers[-1:]
    return peers[int(planned.draw * len(peers))]


async def _kill_node(node: SoakNode) -> str:
    pid = node.node.pid
    node.may_end = True
    try:
        node.node.send(signal.SIGKILL)
        await happens(lambda: node.node.exit_code() is not None, _PATIENCE_S)
        code = node.node.exit_code()
    finally:
        node.node.start()
        node.may_end = False
    return f"process {pid} ended by signal 9" if code == -signal.SIGKILL else ""


async def _kill_child(swarm: Swarm, node: SoakNode, kind: str) -> str:
    pid = await _child(swarm, node, kind)
    if not pid:
        return ""
    os.kill(pid, signal.SIGKILL)
    ended = await happens(lambda: not is_alive(pid), _PATIENCE_S)
    return f"process {pid} ended" if ended else ""


async def _child(swarm: Swarm, node: SoakNode, kind: str) -> int:
    """The process; 0 if there is none. A fault before may have ended it: then its successor."""
    await happens(lambda: find_child(swarm, node.name, kind) != 0, _PATIENCE_S)
    return find_child(swarm, node.name, kind)


async def _freeze(pid: int, hold_s: float) -> str:
    if not pid:
        return ""
    os.kill(pid, signal.SIGSTOP)
    try:
        stopped = await happens(lambda: state_of(pid) == "T", _PATIENCE_S)
        # Whoever depends on it may end it meanwhile and start another.
        await asyncio.sleep(hold_s)
        return f"process {pid} in state T" if stopped else ""
    finally:
        if state_of(pid):
            os.kill(pid, signal.SIGCONT)


async def _change(links: list[ShapingProxy], link: Link, hold_s: float) -> str:
    """Makes links as bad as `link` until that was felt; all of them then are good again."""
    drops, passed = _num_dropped(links), _num_bytes(links)
    for one in links:
        one.link = replace(link)
        if link.is_cut:
            one.drop_all()

    def proof() -> str:
        if link.bytes_per_s:
            num_bytes = _num_bytes(links) - passed
            return f"{num_bytes} bytes passed slowly" if num_bytes else ""
        dropped = _num_dropped(links) - drops
        return f"{dropped} connections ended" if dropped else ""

    try:
        await asyncio.sleep(hold_s)
        # Nothing may have gone that way meanwhile.
        await happens(lambda: proof() != "", _PATIENCE_S)
    finally:
        for one in links:
            one.link = Link()
    return proof()


def _num_dropped(links: list[ShapingProxy]) -> int:
    return sum(one.num_dropped for one in links)


def _num_bytes(links: list[ShapingProxy]) -> int:
    return sum(one.num_bytes_up + one.num_bytes_down for one in links)
