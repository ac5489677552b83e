"""The processes of a soak as the kernel tells: whose they are, and what they hold.

Linux only. Does not do: judge.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak.procfs import PROC, children_by_parent, command_line, of_token
from benchmarks.soak.swarm import Swarm


@dataclass(frozen=True, slots=True)
class Process:
    """One process that belongs to a node, or the S3 server."""

    kind: str
    """validator, s3, p2p (nodes), network, p2pd or store."""
    owner: str
    """The node's name."""
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one process held at one time."""

    time_s: float
    """Since the soak began."""
    process: Process
    rss_kib: int
    anonymous_kib: int
    """Memory that no file backs: what leaks."""
    pss_kib: int | None
    """Shared pages divided by their users; not in every sample."""
    num_fds: int
    num_threads: int


def find_processes(swarm: Swarm) -> list[Process]:
    """All that are meant to run now."""
    children = children_by_parent()
    found = [Process("store", "store", swarm.store.server.pid)]
    for node in swarm.nodes:
        if not node.node.pid:
            continue
        found.append(Process(node.kind, node.name, node.node.pid))
        for child in children.get(node.node.pid, ()):
            if "shoal.node.network" in command_line(child):
                found.append(Process("network", node.name, child))
                found += [Process("p2pd", node.name, one) for one in children.get(child, ())]
    return found


def find_child(swarm: Swarm, owner: str, kind: str) -> int:
    """The process id of a node's network process or p2pd; 0 if there is none now."""
    matching = [p for p in find_processes(swarm) if p.owner == owner and p.kind == kind]
    return matching[0].pid if matching else 0


def take_sample(process: Process, time_s: float, *, with_pss: bool) -> Sample | None:
    """Reads one process's figures; None if it has just ended."""
    folder = PROC / str(process.pid)
    try:
        status = dict(_fields(folder / "status"))
        if "RssAnon" not in status:
            return None
        pss = dict(_fields(folder / "smaps_rollup")).get("Pss") if with_pss else None
        return Sample(
            time_s=time_s,
            process=process,
            rss_kib=_kib(status["VmRSS"]),
            anonymous_kib=_kib(status["RssAnon"]),
            pss_kib=None if pss is None else _kib(pss),
            num_fds=len(os.listdir(folder / "fd")),  # noqa: PTH208 - names are enough
            num_threads=int(status["Threads"]),
        )
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def find_strays(swarm: Swarm) -> dict[int, str]:
    """Processes that a soak has started, directly or not, and that are not meant to run now."""
    known = {process.pid for process in find_processes(swarm)} | {swarm.forge.pid}
    return {
        pid: line for pid, line in of_token(swarm.token, swarm.root).items() if pid not in known
    }


def _fields(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value.strip()


def _kib(text: str) -> int:
    return int(text.split(maxsplit=1)[0])
