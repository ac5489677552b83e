"""Timing, peak memory and the rows in which both are printed."""

import os
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np


def machine_line() -> str:
    """Processor, number of cores and versions: no figure means anything without them."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [
        line.split(":", 1)[1].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    ]
    processor = models[0] if models else platform.processor()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"Machine: {processor}, {len(models)} cores, Python {platform.python_version()}, "
        f"numpy {np.__version__}, numba {numba.__version__}, load {load}"
    )


class Run(NamedTuple):
    """What one run took.

    Attributes:
        wall_s: seconds that passed.
        core_s: seconds of all cores together; nearly the same on a busy machine as on an idle one.
    """

    wall_s: float
    core_s: float


def time_runs(
    work: Callable[[], object], *, runs: int, before: Callable[[], object] = lambda: None
) -> list[Run]:
    """Time some runs; `before` is not timed."""
    taken = []
    for _ in range(runs):
        before()
        wall, core = time.perf_counter(), time.process_time()
        work()
        taken.append(Run(time.perf_counter() - wall, time.process_time() - core))
    return taken


def rate_row(name: str, amount: int, runs: list[Run], unit: str, target: str = "") -> str:
    """A row with rates in millions of `unit` per second: median, extremes, per second of a core."""
    rates = sorted(amount / run.wall_s / 1e6 for run in runs)
    per_core = statistics.median(amount / run.core_s / 1e6 for run in runs)
    return (
        f"| {name} | {statistics.median(rates):,.0f} M {unit}/s "
        f"| {rates[0]:,.0f} .. {rates[-1]:,.0f} | {per_core:,.0f} | {target} |"
    )


def peak_bytes(work: Callable[[], object], output_bytes: Callable[[], int]) -> int:
    """Most bytes that were held at once during the work, without its inputs and outputs."""
    tracemalloc.start()
    held_before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - held_before - output_bytes()
