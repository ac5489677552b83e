"""Ctrl+C at a node whose event loop is busy with something else."""

import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

BUSY_S = 120
PROGRAM = f"""
import asyncio, signal, sys, time
from shoal.node import stopping

async def main():
    stop = asyncio.Event()
    stopping.install(stop)
    print("ready", flush=True)
    if sys.argv[1] == "busy":
        time.sleep({BUSY_S})
    if sys.argv[1] == "twice":
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    await stop.wait()
    print("left in order", flush=True)

asyncio.run(main())
"""


def start(how: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, how]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def rest_of(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """What it still says until it ends; not `communicate`, which forgets what was read ahead."""
    process.wait(BUSY_S / 2)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        return process.stdout.read(), process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_one_ends_a_node_whose_loop_is_busy(number: signal.Signals) -> None:
    process = start("busy")
    try:
        process.send_signal(number)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("stopping: finishing what is in progress")
        # Two of one moment are one.
        time.sleep(0.5)
        process.send_signal(number)
        out, err = rest_of(process)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "")


def test_the_first_one_wakes_a_loop_that_waits() -> None:
    process = start("idle")
    try:
        process.send_signal(signal.SIGINT)
        out, err = rest_of(process)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "left in order\n")
    assert err.startswith("stopping: ")


def test_two_of_one_moment_are_one() -> None:
    process = start("twice")
    out, err = rest_of(process)
    assert (process.returncode, out) == (0, "left in order\n")
    assert err.count("stopping: ") == 1
