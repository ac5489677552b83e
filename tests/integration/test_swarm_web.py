"""`shoal swarm --web` on a terminal: the pages are there while the live table is."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from tests.support.processes import environment, wait_until
from tests.support.tiny_run import write_plan

pytestmark = pytest.mark.slow

# Importing torch dominates: a start may take long on a busy machine.
START_S = 400.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _fetch(url: str) -> str:
    try:
        with DIRECT.open(url, timeout=30) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""


def _is_page(url: str) -> bool:
    return "<html" in _fetch(url)


def _has_metrics(url: str) -> bool:
    return "shoal_" in _fetch(f"{url}metrics")


@pytest.mark.timeout(900)
def test_every_nodes_page_answers_while_a_live_table_is_shown(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, num_rounds=4000, inner_steps=30)
    terminal, theirs = pty.openpty()
    os.set_blocking(terminal, False)
    shown = bytearray()

    def read() -> str:
        try:
            while block := os.read(terminal, 65536):
                shown.extend(block)
        except (BlockingIOError, OSError):
            pass
        return shown.decode(errors="replace")

    folder = str(tmp_path / "run")
    options = ["--config", str(plan), "--run-dir", folder, "--peers", "1", "--web", "auto"]
    swarm = subprocess.Popen(
        [sys.executable, "-m", "shoal", "swarm", *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment() | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        pages = r"page of (\S+) +(http://127\.0\.0\.1:\d+/)"
        wait_until(lambda: len(re.findall(pages, read())) == 2, "addresses are printed", START_S)
        found = dict(re.findall(pages, read()))
        assert set(found) == {"validator-0", "peer-0"}
        for name, url in found.items():
            wait_until(partial(_is_page, url), f"the page of {name}", START_S)
            wait_until(partial(_has_metrics, url), f"the metrics of {name}", START_S)
        # The table is redrawn in place: the terminal's cursor goes up.
        wait_until(lambda: "\x1b[1A" in read(), "a live table", START_S)
        swarm.send_signal(signal.SIGINT)
        end_s = time.monotonic() + 150
        while swarm.poll() is None and time.monotonic() < end_s:
            read()
            time.sleep(0.05)
        assert swarm.poll() == 130, read()[-2000:]
        assert not [url for url in found.values() if _fetch(url)]
    finally:
        if swarm.poll() is None:
            swarm.kill()
        swarm.wait()
        os.close(terminal)
