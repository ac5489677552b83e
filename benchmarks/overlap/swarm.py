"""One run of real processes: a validator with the HTTP service, peers behind links of their own.

Guarantees: every process that was started has ended when the context ends. Does not do: measure.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.overlap.logs import Event, events_of
from shoal.node.config import RunPlan, load_run_plan
from shoal.node.swarm_setup import SwarmFolder, set_up_swarm
from shoal.node.swarm_stores import SwarmStore
from shoal.storage.directory import DirectoryStore
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
        port = _free_port()
        links = [
            await held.enter_async_context(ShapingProxy("127.0.0.1", port)) for _ in case.speeds
        ]
        folder = await set_up_swarm(plan, root, _stores(root, port, links))
        step_s = case.train_s / plan.training.inner_steps
        paces = [0.0, *(step_s * speed for speed in case.speeds)]
        nodes = await held.enter_async_context(_started(folder, paces))
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


@asynccontextmanager
async def _started(folder: SwarmFolder, paces: list[float]) -> AsyncIterator[list[_Node]]:
    nodes: list[_Node] = []
    try:
        for path, step_s in zip(folder.nodes, paces, strict=True):
            verb = "validate" if path in folder.validators else "join"
            nodes.append(_Node(path, _start(path, folder.manifest_file, verb, step_s)))
        yield nodes
    finally:
        for node in nodes:
            node.process.terminate()
        for node in nodes:
            await asyncio.to_thread(node.process.wait)


def _start(path: Path, manifest: Path, verb: str, step_s: float) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable, "-m", "benchmarks.overlap.paced_node", str(step_s), verb, str(manifest),
        "--config", str(path / "node.toml"), "--leave-with-parent",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (path / "node.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603  # our own program
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
