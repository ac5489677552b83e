"""Samples every process of a soak every few seconds, and keeps what it has seen.

Guarantees: samples.csv grows while the soak runs, so that one that is broken off leaves them.
"""

import asyncio
import csv
import time
from pathlib import Path

from benchmarks.soak.processes import Process, Sample, find_processes, find_strays, take_sample
from benchmarks.soak.settings import PSS_EVERY, SAMPLE_S
from benchmarks.soak.swarm import Swarm

_HEAD = ("time_s", "kind", "owner", "pid", "rss_kib", "anonymous_kib", "pss_kib", "fds", "threads")
_STRAY_S = 60.0
"""A network process may outlive its node by its grace, and on a busy machine by more."""
_STRAYS_EVERY = 3


class Watcher:
    """Use `run` as a task; cancel it to stop."""

    def __init__(self, swarm: Swarm, file: Path) -> None:
        self._swarm = swarm
        self._file = file
        self._began_at_s = time.monotonic()
        self._strays: dict[int, float] = {}
        self.samples: list[Sample] = []
        self.orphans: dict[int, str] = {}
        """Processes that outlived what they belonged to, by id."""

    async def run(self) -> None:
        """Samples until cancelled."""
        with self._file.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_HEAD)
            number = 0
            while True:
                new = await asyncio.to_thread(self._take, number)
                self.samples += new
                writer.writerows(map(_row, new))
                file.flush()
                self._swarm.look()
                number += 1
                await asyncio.sleep(SAMPLE_S)

    def _take(self, number: int) -> list[Sample]:
        now_s = time.monotonic() - self._began_at_s
        if number % _STRAYS_EVERY == 0:
            self._note_strays(now_s)
        with_pss = number % PSS_EVERY == 0
        found: list[Process] = find_processes(self._swarm)
        samples = [take_sample(process, now_s, with_pss=with_pss) for process in found]
        return [sample for sample in samples if sample is not None]

    def _note_strays(self, now_s: float) -> None:
        strays = find_strays(self._swarm)
        self._strays = {pid: self._strays.get(pid, now_s) for pid in strays}
        for pid, since_s in self._strays.items():
            if now_s - since_s > _STRAY_S:
                self.orphans[pid] = strays[pid]


def _row(sample: Sample) -> tuple[object, ...]:
    process = sample.process
    pss = "" if sample.pss_kib is None else sample.pss_kib
    return (
        round(sample.time_s, 1), process.kind, process.owner, process.pid, sample.rss_kib,
        sample.anonymous_kib, pss, sample.num_fds, sample.num_threads,
    )  # fmt: skip
