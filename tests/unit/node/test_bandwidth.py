"""The watch over caps and quotas while a node runs, in virtual time."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from shoal.node.bandwidth import SAVE_AFTER_BYTES, SAVE_EVERY_S, keeping_books
from shoal.node.config import BandwidthConfig, NodeConfig, StoreConfig, load_node_config
from shoal.node.errors import ConfigError
from shoal.node.monthly_use import FILE_NAME, MonthlyUse
from shoal.node.network.client import NetworkClient
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.messages import Status
from shoal.node.telemetry.event_log import EventLog
from tests.support.virtual_time import VirtualLoop, run_virtual

FEBRUARY_S = 31 * 86_400.0
"""Of 1970."""


class Process:
    """Stands for the network client: what the process says, and what it was told."""

    def __init__(self) -> None:
        self.process_id = 1
        self.num_bytes_up = 0
        self.told: list[tuple[int, bool]] = []
        self.is_away = False

    async def status(self, timeout_s: float) -> Status:
        if self.is_away:
            raise PeerUnavailableError("away", "")
        return Status(
            peer_id="p",
            process_id=self.process_id,
            p2pd_process_id=9,
            addresses=(),
            num_bytes_up=self.num_bytes_up,
        )

    async def allow_uploads(self, *, allowed: bool, timeout_s: float) -> None:
        self.told.append((self.process_id, allowed))


class Watched:
    """A book that is kept, and what came of it."""

    def __init__(self, folder: Path, loop: VirtualLoop, up: int = 0, down: int = 0) -> None:
        self.file = folder / FILE_NAME
        # A minute before the end of a month.
        behind_s = FEBRUARY_S - 60 - loop.now_s()
        self.book = MonthlyUse(
            self.file, lambda: loop.now_s() + behind_s, up_bytes=up, down_bytes=down
        )
        self.log = EventLog(folder / "events.jsonl", loop.now_s)
        self.stop = asyncio.Event()
        self.process = Process()
        self.config = NodeConfig(
            key_file="k",
            state_dir=str(folder),
            store=StoreConfig(path="s"),
            bandwidth=BandwidthConfig(monthly_upload_bytes=up, monthly_download_bytes=down),
        )

    async def keep(self, body: Callable[[], Coroutine[None, None, None]]) -> None:
        network = self.process
        async with keeping_books(self.config, self.book, network, self.log, self.stop):  # type: ignore[arg-type] # the two calls that are made
            await body()
        self.log.close()

    def events(self, name: str) -> list[dict[str, object]]:
        lines = self.log.path.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def saved(self) -> int:
        return int(json.loads(self.file.read_bytes())["up"]) if self.file.exists() else 0


def watch(
    folder: Path, body: Callable[[Watched], Coroutine[None, None, None]], up: int = 0, down: int = 0
) -> Watched:
    async def run(loop: VirtualLoop) -> Watched:
        watched = Watched(folder, loop, up, down)
        await watched.keep(lambda: body(watched))
        return watched

    return run_virtual(run)


def test_the_stand_in_has_the_clients_methods() -> None:
    assert hasattr(NetworkClient, "status")
    assert hasattr(NetworkClient, "allow_uploads")


def test_a_kill_costs_five_seconds_or_sixteen_mebibytes_at_most(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        watched.book.add("up", 100)
        await asyncio.sleep(SAVE_EVERY_S + 1.5)
        assert watched.saved() == 100
        watched.book.add("up", SAVE_AFTER_BYTES)
        await asyncio.sleep(1.5)
        assert watched.saved() == 100 + SAVE_AFTER_BYTES
        watched.book.add("up", 5)

    assert watch(tmp_path, body).saved() == 105 + SAVE_AFTER_BYTES


def test_a_used_up_download_quota_asks_the_node_to_stop(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        watched.book.add("down", 80)
        await asyncio.sleep(1.5)
        assert not watched.stop.is_set()
        watched.book.add("down", 20)
        await asyncio.sleep(1.5)
        assert watched.stop.is_set()

    watched = watch(tmp_path, body, down=100)
    warnings = [str(event["message"]) for event in watched.events("warning")]
    assert [text[:7] for text in warnings] == ["80% of ", "E_QUOTA"]


def test_what_the_network_process_gives_away_counts_over_its_restarts(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        watched.process.num_bytes_up = 70
        await asyncio.sleep(2 * SAVE_EVERY_S + 1)
        watched.process.num_bytes_up = 90
        await asyncio.sleep(SAVE_EVERY_S + 1)
        watched.process.is_away = True
        await asyncio.sleep(SAVE_EVERY_S + 1)
        watched.process.process_id, watched.process.num_bytes_up = 2, 15
        watched.process.is_away = False
        await asyncio.sleep(SAVE_EVERY_S + 1)

    watched = watch(tmp_path, body, up=100)
    assert watched.book.sums().up == 105
    assert watched.process.told == [(2, False)]
    assert not watched.stop.is_set()


def test_a_new_process_is_told_again_and_a_new_month_allows(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        watched.book.add("up", 100)
        await asyncio.sleep(SAVE_EVERY_S + 2)
        watched.process.process_id = 2
        await asyncio.sleep(SAVE_EVERY_S + 2)
        await asyncio.sleep(60)

    assert watch(tmp_path, body, up=100).process.told == [(1, False), (2, False), (2, True)]


def test_events_show_limits_and_use_when_they_change(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        await asyncio.sleep(35)
        watched.book.add("down", 7)
        await asyncio.sleep(20)

    shown = watch(tmp_path, body, up=50).events("bandwidth")
    assert [event["downloaded_bytes"] for event in shown] == [0, 7]
    assert shown[0]["upload_quota_bytes"] == 50


def test_a_disk_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    async def body(watched: Watched) -> None:
        watched.file.mkdir()
        (watched.file / "full").write_bytes(b"")
        for _ in range(4):
            watched.book.add("up", 1)
            await asyncio.sleep(SAVE_EVERY_S + 1)

    (warning,) = watch(tmp_path, body).events("warning")
    assert "cannot be saved" in str(warning["message"])


TOML = 'key_file = "k"\nstate_dir = "s"\n[store]\npath = "p"\n[bandwidth]\n'


def test_the_section_is_read(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(TOML + "upload_bytes_per_s = 2_500_000\nmonthly_upload_bytes = 1_000\n")
    section = load_node_config(file).bandwidth
    assert (section.upload_bytes_per_s, section.monthly_upload_bytes) == (2_500_000, 1000)
    assert (section.download_bytes_per_s, section.control_ratio) == (0, 0.05)


@pytest.mark.parametrize(
    "line",
    [
        "upload_bytes_per_s = 32767",
        "download_bytes_per_s = 1",
        "upload_bytes_per_s = -1",
        'upload_bytes_per_s = "20 Mbit/s"',
        "control_ratio = 0.6",
        "monthly_upload_bytes = 1e12",
        "cap = 1",
    ],
)
def test_a_limit_that_is_none_is_refused_with_its_name(tmp_path: Path, line: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(TOML + line + "\n")
    with pytest.raises(ConfigError, match=r"bandwidth\."):
        load_node_config(file)
