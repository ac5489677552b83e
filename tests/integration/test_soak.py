"""A short soak: peers on S3 and on libp2p in one run, a random fault every few seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.soak.faults import FaultKind
from benchmarks.soak.procfs import of_token, process_ids
from tests.support.processes import environment, wait_until

pytestmark = pytest.mark.slow

NUM_PEERS = 3
FAULT_EVERY_S = 14
MINUTES = 2.81
NUM_FAULTS = 12
END_S = 240.0
"""It waits a minute for processes that do not end, and ends them."""
# Of few rounds on a busy machine; an hour has higher ones.
FLOORS = ("--min-goodput", "0.4", "--min-rounds-goodput", "0.1")


@contextmanager
def soak(out: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command; ended with the context if it still runs."""
    argv = [sys.executable, "-m", "benchmarks.soak", "--out", str(out)]
    argv += ["--peers-s3", str(NUM_PEERS), "--peers-p2p", str(NUM_PEERS), *options]
    with (out.parent / "soak.log").open("w") as log:
        process = subprocess.Popen(
            argv,
            stdout=log,
            stderr=log,
            text=True,
            env=environment(),
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(subprocess.TimeoutExpired):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(END_S)
        # What it has started ends with it.
        process.kill()
        process.wait()


def said(out: Path) -> str:
    return (out.parent / "soak.log").read_text()


@pytest.mark.timeout(1200)
def test_a_short_soak_with_a_fault_every_few_seconds_ends_as_it_must(tmp_path: Path) -> None:
    out = tmp_path / "soak"
    options = ("--minutes", str(MINUTES), "--fault-every", str(FAULT_EVERY_S), "--hold", "9")
    with soak(out, *options, "--round-seconds", "60", *FLOORS) as process:
        code = process.wait(840)
    assert code == 0, said(out)
    report = json.loads((out / "report.json").read_text())
    by_name = {check["name"]: check for check in report["checks"]}
    for name in (
        "states that differ from the records",
        "peers that did not catch up",
        "faults never recovered from",
        "orphans",
        "files and sockets left",
    ):
        assert by_name[name]["found"] == "none", by_name[name]
    assert len(report["faults"]) == NUM_FAULTS
    assert {fault["kind"] for fault in report["faults"]} == set(FaultKind)
    assert all(fault["proof"] and fault["recovery_s"] is not None for fault in report["faults"])
    assert report["payloads"]["counted_of_possible"] >= 0.4
    assert report["payloads"]["rejected"] == {}
    # A node that is asked to leave between two rounds rightly stops one round before others.
    state = report["state"]
    assert len(state["last_round_of_nodes"]) == 1 + 2 * NUM_PEERS
    assert min(state["last_round_of_nodes"].values()) >= state["last_round_with_faults"] > 0
    for name in ("summary.md", "soak.png", "samples.csv"):
        assert (out / name).stat().st_size > 1000, name


@pytest.mark.timeout(900)
def test_ctrl_c_ends_a_soak_and_everything_that_it_has_started(tmp_path: Path) -> None:
    out = tmp_path / "soak"
    with soak(out, "--minutes", "10") as process:
        logs = [out / "run" / "nodes" / f"peer-{i}" / "node.log" for i in range(2 * NUM_PEERS)]
        wait_until(lambda: all(log.exists() for log in logs), "all nodes are started", 300.0)
        # Network processes too, in the middle of their start.
        time.sleep(3.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 130, said(out)
    assert "stopped" in said(out)
    assert "Traceback" not in said(out)
    assert not [line for line in of_token("", out).values() if str(out) in line]
    assert not [pid for pid in process_ids() if str(out) in _environment_of(pid)]


def _environment_of(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "environ").read_text() if pid != os.getpid() else ""
    except OSError:
        return ""
