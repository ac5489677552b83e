"""One run of real processes: a validator with the HTTP service, peers behind links of their own.

Guarantees: every process that was started has ended when the context ends. Does not do: measure.
"""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.overlap.logs import Event, events_of
from shoal.node.config import RunPlan, load_run_plan
from shoal.node.swarm_setup import SwarmFolder, set_up_swarm
from shoal.node.swarm_stores import SwarmStore
from shoal.storage.directory import DirectoryStore
from tests.support.ports import free_port
from tests.support.shaping_proxy import ShapingProxy

_PLAN_FILE = Path(__file__).with_name("plan.toml")
_START_S = 180.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is measured."""

    overlap: str
    speeds: tuple[float, ...]
    """One for each peer: how long its inner loop takes, as a share of the slowest one's."""
    train_s: float
    """Of the slowest peer's inner loop."""
    payload_ratio: float
    """Time of a round's payloads on a peer's link, as a share of `train_s`."""
    num_rounds: int


class RunFailedError(Exception):
    """A node has ended with an error, or not at all."""


async def run_case(case: Case, root: Path) -> dict[str, list[Event]]:
    """Runs a case to its end; gives the event log of every node, by name.

    Raises:
        RunFailedError: a node fails.
    """
    plan = _plan(case)
    async with AsyncExitStack() as held:
        port = free_port()
        links = [
            await held.enter_async_context(ShapingProxy("127.0.0.1", port)) for _ in case.speeds
        ]
        folder = await set_up_swarm(plan, root, _stores(root, port, links))
        step_s = case.train_s / plan.training.inner_steps
        paces = [step_s * speed for speed in case.speeds]
        nodes: list[_Node] = []
        held.push_async_callback(_end, nodes)
        nodes.append(_start(folder, folder.validators[0], "validate", 0.0))
        # Its service is open by then.
        await _all(nodes, "round-opened", _START_S)
        for path, pace_s in zip(folder.peers, paces, strict=True):
            nodes.append(_start(folder, path, "join", pace_s))
        await _all(nodes, "node-started", _START_S)
        num_payloads = len(links)  # its own up, the others' down
        rate = num_payloads * folder.manifest.payload_bytes / (case.payload_ratio * case.train_s)
        for link in links:
            link.link.bytes_per_s = rate
        await _all(nodes, "node-stopped", case.num_rounds * (2 * case.train_s + 20.0))
    return {node.folder.name: node.events() for node in nodes}


@dataclass(frozen=True, slots=True)
class _Node:
    folder: Path
    process: "subprocess.Popen[bytes]"

    def events(self) -> list[Event]:
        return events_of(self.folder / "state" / "events.jsonl")

    def has(self, name: str) -> bool:
        return any(event["event"] == name for event in self.events())


def _plan(case: Case) -> RunPlan:
    plan = load_run_plan(_PLAN_FILE)
    num_peers = len(case.speeds)
    return replace(
        plan,
        run=replace(plan.run, num_rounds=case.num_rounds),
        swarm=replace(plan.swarm, num_peers=num_peers),
        timing=replace(
            plan.timing,
            overlap=case.overlap,
            round_seconds=max(3 * case.train_s, 30.0),
            min_peers=num_peers,
            target_peers=num_peers,
        ),
    )


def _stores(root: Path, port: int, links: list[ShapingProxy]) -> SwarmStore:
    directory = f'[store]\nkind = "directory"\npath = "{root / "store"}"\n'
    served = f'{directory}[serve]\nlisten = "127.0.0.1:{port}"\n'
    peers = tuple(f'[store]\nkind = "http"\nurl = "{link.url}"\n' for link in links)
    (root / "store").mkdir()
    store = DirectoryStore(root / "store")
    return SwarmStore(store=store, validator_toml=served, peer_tomls=peers)


async def _end(nodes: list[_Node]) -> None:
    for node in nodes:
        node.process.terminate()
    for node in nodes:
        await asyncio.to_thread(node.process.wait)


def _start(folder: SwarmFolder, path: Path, verb: str, step_s: float) -> _Node:
    command = [
        sys.executable, "-m", "benchmarks.overlap.paced_node", str(step_s),
        verb, str(folder.manifest_file),
        "--config", str(path / "node.toml"), "--leave-with-parent",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (path / "node.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603  # our own program
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
    return _Node(path, process)


async def _all(nodes: list[_Node], name: str, patience_s: float) -> None:
    """Waits until every node has logged the event.

    Raises:
        RunFailedError: one ends without it, or they take too long.
    """
    until_s = time.monotonic() + patience_s
    for node in nodes:
        while not node.has(name):
            code = node.process.poll()
            if code is not None and not node.has(name):
                last = (node.folder / "node.log").read_text(errors="replace")[-500:]
                raise RunFailedError(f"{node.folder.name} ended with {code}: {last}")
            if time.monotonic() > until_s:
                raise RunFailedError(f"{node.folder.name}: no {name} within {patience_s:.0f} s")
            await asyncio.sleep(0.2)
