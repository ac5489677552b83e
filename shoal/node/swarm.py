"""`shoal swarm`: several peers and a validator, each a process of its own, on one machine.

Guarantees: no process is left behind, however this one ends (each child holds the other end of a
pipe); a child that is killed is started again and resumes, as on any volunteer's machine; the first
Ctrl+C lets all nodes leave at a good moment, the second ends them at once; the end compares the
parameters of all nodes.

Does not do: share memory or anything else with its nodes: it reads their event logs.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from shoal.node.errors import (
    EXIT_CONFIG,
    EXIT_HALTED,
    EXIT_RESOURCE,
    HaltError,
    NodeError,
)
from shoal.node.start_node import EVENTS_FILE
from shoal.node.swarm_events import NodeView
from shoal.node.swarm_report import write_report
from shoal.node.swarm_setup import (
    SwarmFolder,
    claim_folder,
    load_swarm_plan,
    set_up_swarm,
)
from shoal.node.swarm_stores import StoreKind, open_swarm_store, with_endpoints
from shoal.node.swarm_view import SwarmView
from shoal.node.swarm_web import choose_ports, pages_text, with_pages

_POLL_S = 0.25
_MAX_FUTILE_RESTARTS = 5
"""A node that is killed this often without finishing a round in between is given up."""
_LEAVE_S = 30.0


class SwarmFailedError(NodeError):
    """A node ended with an error, or the nodes disagree."""

    exit_code = EXIT_HALTED


class SwarmStoppedError(NodeError):
    """The person at the terminal stopped the swarm before its last round."""

    exit_code = 130


class NodeProcess:
    """One node's process."""

    def __init__(
        self, folder: Path, manifest_file: Path, verb: str, secrets: dict[str, str] | None
    ) -> None:
        self.folder = folder
        self.view = NodeView(name=folder.name, log=folder / "state" / EVENTS_FILE)
        self._command = [
            sys.executable, "-m", "shoal", verb, str(manifest_file.resolve()),
            "--config", str((folder / "node.toml").resolve()), "--leave-with-parent",
        ]  # fmt: skip
        self._secrets = secrets or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._serves = verb == "validate"
        self._released = False
        self.num_looks_after_end = 0
        """How often it was found to have ended well before the last round."""
        self._progress = 0
        self._num_futile = 0

    def start(self) -> None:
        """Starts the process; its output goes to node.log."""
        self.view.finished, self.view.parameters_root = False, ""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment |= self._secrets
        with (self.folder / "node.log").open("ab") as log:
            # A session of its own: Ctrl+C at the terminal reaches the parent alone.
            self._process = subprocess.Popen(  # noqa: S603  # our own program
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def may_restart(self) -> bool:
        """Counts a restart; False after too many that led nowhere."""
        progress = len(self.view.reports)
        self._num_futile = self._num_futile + 1 if progress == self._progress else 1
        self._progress = progress
        return self._num_futile <= _MAX_FUTILE_RESTARTS

    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return None if self._process is None else self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def release(self) -> None:
        """Tells a validator, once, that nobody needs it any more; peers end by themselves."""
        if self._serves and not self._released:
            self._released = True
            self.send(signal.SIGTERM)

    def last_words(self) -> str:
        """The last line of node.log."""
        try:
            lines = (self.folder / "node.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


async def run_swarm(
    plan_file: Path,
    root: Path,
    *,
    num_peers: int | None,
    num_rounds: int | None,
    store: StoreKind,
    fresh: bool,
    web: str = "",
) -> None:
    """Sets up, runs, reports.

    Args:
        plan_file: the run plan.
        root: the swarm's folder.
        num_peers: instead of the plan's.
        num_rounds: instead of the plan's.
        store: how the nodes exchange their objects.
        fresh: start over.
        web: where the nodes' pages are, as `choose_ports` reads it.

    Raises:
        NodeError: wrong configuration, a node that ended with an error, or nodes that disagree.
        DataError: a text is not usable.
    """
    console = Console(width=None if sys.stdout.isatty() else 100)
    # Before the folder is touched: a slip of the pen must not cost a run.
    plan = with_endpoints(load_swarm_plan(plan_file, num_peers, num_rounds), store)
    ports = choose_ports(web, plan.swarm.num_peers + plan.swarm.num_validators)
    with claim_folder(root, fresh=fresh):
        console.print("setting up: store, tokenizer, shards, genesis, manifest", highlight=False)
        async with open_swarm_store(store, root, plan.swarm.num_peers) as stores:
            folder = await set_up_swarm(plan, root, with_pages(stores, ports))
            _introduce(console, folder)
            if ports:
                text = pages_text([path.name for path in folder.nodes], ports)
                console.print(text, highlight=False, soft_wrap=True)
            nodes = [
                NodeProcess(path, folder.manifest_file, verb, stores.environments.get(path.name))
                for verb, paths in (("validate", folder.validators), ("join", folder.peers))
                for path in paths
            ]
            stopped = await _run_nodes(console, folder, nodes)
        identical = write_report(console, folder, [node.view for node in nodes])
    if stopped:
        raise SwarmStoppedError("stopped before the last round; the same command resumes")
    if not identical:
        raise SwarmFailedError("the nodes do not hold identical parameters")


def _introduce(console: Console, folder: SwarmFolder) -> None:
    manifest = folder.manifest
    parameters = sum(manifest.sizes)
    console.print(
        f"run {manifest.run_id.hex()[:16]}: {len(folder.peers)} peers, {len(folder.validators)} "
        f"validator, {manifest.run.num_rounds} rounds of {manifest.training.inner_steps} inner "
        f"steps\nmodel: {manifest.model.model_type}, {parameters:,} parameters; payload "
        f"{manifest.payload_bytes:,} bytes against {4 * parameters:,} dense\nfolder: {folder.root}",
        highlight=False,
        soft_wrap=True,
    )


async def _run_nodes(console: Console, folder: SwarmFolder, nodes: Sequence[NodeProcess]) -> bool:
    """Runs all nodes to their end; True if somebody stopped them before the last round."""
    stop = asyncio.Event()
    _install_signals(stop, nodes)
    try:
        for node in nodes:
            # What an earlier start has logged is known, not news.
            node.view.read_new()
            node.start()
        with SwarmView(console, folder.manifest, [node.view for node in nodes]) as view:
            await _watch(view, nodes, stop)
    finally:
        await _end(nodes)
    return not all(node.view.finished for node in nodes)


def _install_signals(stop: asyncio.Event, nodes: Sequence[NodeProcess]) -> None:
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            for node in nodes:
                node.send(signal.SIGKILL)
            os._exit(130)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


async def _watch(view: SwarmView, nodes: Sequence[NodeProcess], stop: asyncio.Event) -> None:
    stopping_since_s = 0.0
    while True:
        running = _revive(view, nodes, stop)
        new = [report for node in nodes for report in node.view.read_new()]
        view.update(new)
        if not running:
            return
        _release_servers(nodes)
        if stop.is_set() and not stopping_since_s:
            stopping_since_s = time.monotonic()
            view.say("stopping: every node finishes what is in progress (again to leave at once)")
            for node in nodes:
                node.send(signal.SIGTERM)
        if stopping_since_s and time.monotonic() - stopping_since_s > _LEAVE_S:
            return
        await asyncio.sleep(_POLL_S)


def _release_servers(nodes: Sequence[NodeProcess]) -> None:
    """A validator that serves over HTTP stays for those who come late; here nobody does."""
    if all(node.view.finished for node in nodes):
        for node in nodes:
            node.release()


def _revive(view: SwarmView, nodes: Sequence[NodeProcess], stop: asyncio.Event) -> bool:
    """Starts killed nodes again; False when none runs any more.

    Raises:
        SwarmFailedError: a node ended for a reason that a restart does not mend.
    """
    running = False
    for node in nodes:
        code = node.exit_code()
        if code is None:
            running = True
        elif node.view.finished:
            continue
        elif code < 0 and not stop.is_set() and node.may_restart():
            view.say(f"{node.view.name} was killed by signal {-code}; starting it again")
            node.start()
            running = True
        elif code == 0 and not stop.is_set():
            _on_leaving(view, node, stop)
        elif code != 0 and not stop.is_set():
            words = node.last_words().removeprefix("shoal: ")
            error = SwarmFailedError(
                f"{node.view.name} ended with code {code}: {words} (see {node.folder}/node.log)"
            )
            if code in (EXIT_CONFIG, EXIT_RESOURCE):
                error.exit_code = code
            raise error
    return running


def _on_leaving(view: SwarmView, node: NodeProcess, stop: asyncio.Event) -> None:
    """Somebody stopped one node: peers are free to leave; without the validator no round closes."""
    # At the second look its event log has been read to the end: now it is known not to be finished.
    node.num_looks_after_end += 1
    if node.num_looks_after_end != 2:
        return
    consequence = "the others go on without it"
    if node.view.role == "validator":
        consequence = "no round closes without it, so all leave"
        stop.set()
    view.say(f"{node.view.name} was stopped before the last round; {consequence}")


async def _end(nodes: Sequence[NodeProcess]) -> None:
    """Leaves no process behind."""
    for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        for node in nodes:
            node.send(number)
        deadline_s = time.monotonic() + patience_s
        while time.monotonic() < deadline_s:
            if all(node.exit_code() is not None for node in nodes):
                return
            await asyncio.sleep(0.05)
    raise HaltError("a node's process does not end")
