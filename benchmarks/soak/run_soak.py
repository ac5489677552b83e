"""One soak from start to end.

    set up -> start -> everybody counts once -> faults -> everybody catches up -> leave -> look

Guarantees: whatever ends it, all processes are ended; what it returns was read after their end.
"""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.soak.faults import Fault, inject, schedule
from benchmarks.soak.outcome import Outcome
from benchmarks.soak.procfs import of_token
from benchmarks.soak.records import read_chain
from benchmarks.soak.settings import SoakSettings
from benchmarks.soak.swarm import SoakNode, Swarm, open_swarm
from benchmarks.soak.waiting import happens
from benchmarks.soak.watching import Watcher
from shoal.storage.seaweed_process import LOG_NAME as STORE_LOG_NAME

_GONE_S = 60.0
_POLL_S = 0.5


class NotStartedError(Exception):
    """The swarm does not run even without faults."""


async def run_soak(settings: SoakSettings, say: Callable[[str], None]) -> Outcome:
    """Runs a soak.

    Args:
        settings: what to do.
        say: takes one line for the person who watches.

    Raises:
        NotStartedError: not every peer counted once within the time for starting.
    """
    root, token = settings.out / "run", secrets.token_hex(8)
    try:
        async with open_swarm(settings, root, token) as swarm:
            outcome = await _soak(swarm, settings, say)
    finally:
        left = await _wait_until_gone(token, root)
    outcome.orphans.update(left)
    outcome.leftovers.extend(_leftovers(root))
    return outcome


async def _soak(swarm: Swarm, settings: SoakSettings, say: Callable[[str], None]) -> Outcome:
    watcher = Watcher(swarm, settings.out / "samples.csv")
    samples_began_at_s = time.time()
    for node in swarm.nodes:
        node.node.start()
    watching = asyncio.create_task(watcher.run())
    try:
        say(f"started {len(swarm.nodes)} nodes; waiting until every peer has counted once")
        late = await _until_counted(swarm, 0, settings.start_s, alive=True)
        if late or swarm.unexpected:
            raise NotStartedError("; ".join(swarm.unexpected) or f"never counted: {late}")
        began_at_s = time.time()
        faults = await _make_faults(swarm, settings, say)
        ended_at_s = time.time()
        say("no more faults; waiting until every peer counts again")
        swarm.look()
        # The next record may have been written already, and the one after it before the last fault
        # was healed: what is later says that it has been recovered from.
        late = await _until_counted(swarm, _head(swarm) + 2, settings.start_s)
        failed = await swarm.leave()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    for node in swarm.nodes:
        node.view.read_new()
    return Outcome(
        began_at_s=began_at_s,
        ended_at_s=ended_at_s,
        records=await read_chain(swarm.folder.manifest, swarm.run_store),
        views=[node.view for node in swarm.nodes],
        peers={node.name: node.peer for node in swarm.peers},
        kinds={node.name: node.kind for node in swarm.peers},
        faults=faults,
        samples=watcher.samples,
        samples_began_at_s=samples_began_at_s,
        unexpected=list(swarm.unexpected),
        failed_to_leave=failed,
        late=late,
        orphans=dict(watcher.orphans),
        leftovers=[],
    )


async def _make_faults(
    swarm: Swarm, settings: SoakSettings, say: Callable[[str], None]
) -> list[Fault]:
    """One fault every `fault_every_s`, each at a random moment of its span."""
    began_at_s = time.monotonic()
    plan, faults = schedule(settings.seed), list[Fault]()
    number = 0
    while (number + 1) * settings.fault_every_s <= settings.duration_s:
        planned = next(plan)
        room_s = max(0.0, settings.fault_every_s - settings.hold_s)
        await _until(began_at_s + number * settings.fault_every_s + planned.draw * room_s)
        fault = await inject(swarm, planned, settings.hold_s)
        faults.append(fault)
        number += 1
        at_s = time.monotonic() - began_at_s
        say(f"{at_s:6.0f} s  round {_head(swarm):4d}  {fault.kind} {fault.target}: {fault.proof}")
    await _until(began_at_s + settings.duration_s)
    return faults


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))


def _head(swarm: Swarm) -> int:
    return max(swarm.validator.view.reports, default=0)


async def _until_counted(
    swarm: Swarm, after_round: int, patience_s: float, *, alive: bool = False
) -> list[str]:
    """Waits until every peer has counted in a round after this one; gives those that had not.

    With `alive` it also ends as soon as a node has ended by itself.
    """

    def late() -> list[str]:
        swarm.look()
        return [node.name for node in swarm.peers if not _has_counted(node, after_round)]

    await happens(lambda: not late() or (alive and bool(swarm.unexpected)), patience_s, _POLL_S)
    return late()


def _has_counted(node: SoakNode, after_round: int) -> bool:
    return any(r["counted"] for number, r in node.view.reports.items() if number > after_round)


async def _wait_until_gone(token: str, root: Path) -> dict[int, str]:
    """Processes that are still there some time after all should have ended; they are ended then."""
    await happens(lambda: not of_token(token, root), _GONE_S)
    left = of_token(token, root)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    return left


def _leftovers(root: Path) -> list[str]:
    """Temporary files and sockets of processes that have all ended."""
    found = [path for pattern in ("*.tmp", "*.partial") for path in root.rglob(pattern)]
    found += [path for path in root.rglob("*.sock") if path.parent.name != "s3"]
    # torch makes itself a folder for compiled code wherever temporary files go.
    found += [p for p in (root / "tmp").iterdir() if not p.name.startswith("torchinductor")]
    found += [path for state in root.glob("nodes/*/state") if (path := _sockets(state)).exists()]
    log = root / "s3" / STORE_LOG_NAME
    return [str(path) for path in found if path != log]


def _sockets(state: Path) -> Path:
    """Where the network process puts its sockets if the path within the state is too long."""
    inside = (state / "network").absolute() / "s"
    name = hashlib.sha256(os.fsencode(inside)).hexdigest()[:16]
    return Path("/tmp") / f"shoal-{os.getuid()}-{name}"  # noqa: S108 - looked at, not used
