"""What a node may take of its link: made from `[bandwidth]`, watched while the node runs.

Guarantees: the month's sums are on disk at most a second after 16 MiB more have moved, and at most
five after any; warnings come at 80 % and 100 % of a quota, once a month; a used-up download quota
asks the node to stop, a used-up upload quota tells the network process to give no payloads away.
A disk that cannot be written is said once and costs the sums, not the node.

Does not slow anything down (`storage.allowance` does).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from shoal.node.config import NodeConfig
from shoal.node.monthly_use import FILE_NAME, MonthlyUse
from shoal.node.network.client import NetworkClient
from shoal.node.network.link_share import network_part
from shoal.node.store_keys import P2P
from shoal.node.telemetry.event_log import EventLog
from shoal.node.telemetry.names import EventName
from shoal.storage.allowance import Bandwidth
from shoal.storage.errors import StorageError
from shoal.storage.pacing import RateLimit, reserved_rate

LOOK_EVERY_S: Final = 1.0
SAVE_EVERY_S: Final = 5.0
SAVE_AFTER_BYTES: Final = 16 << 20
SHOW_EVERY_S: Final = 30.0

logger = logging.getLogger(__name__)


def has_network(config: NodeConfig) -> bool:
    """Whether a network process shares the link."""
    return config.network.enabled or P2P in (config.payloads.kind, config.store.kind)


def network_caps(config: NodeConfig) -> tuple[int, int]:
    """The network process's part of both caps, up and down; 0: none."""
    section = config.bandwidth
    serves = P2P in (config.payloads.kind, config.store.kind)
    up, down = (
        network_part(cap, section.control_ratio, serves=serves) if has_network(config) else 0
        for cap in (section.upload_bytes_per_s, section.download_bytes_per_s)
    )
    return up, down


def make_bandwidth(config: NodeConfig, now_s: Callable[[], float]) -> tuple[Bandwidth, MonthlyUse]:
    """The caps of the node's own process, and its book.

    Args:
        config: Of this node.
        now_s: The wall clock, unix seconds.
    """
    section = config.bandwidth
    book = MonthlyUse(
        Path(config.state_dir) / FILE_NAME,
        now_s,
        up_bytes=section.monthly_upload_bytes,
        down_bytes=section.monthly_download_bytes,
    )
    caps = (section.upload_bytes_per_s, section.download_bytes_per_s)
    up, down = (
        _limit(cap, part, section.control_ratio)
        for cap, part in zip(caps, network_caps(config), strict=True)
    )
    return Bandwidth(up=up, down=down, book=book), book


def _limit(
    cap_bytes_per_s: int, network_bytes_per_s: int, control_ratio: float
) -> RateLimit | None:
    if not cap_bytes_per_s:
        return None
    return RateLimit(
        cap_bytes_per_s - network_bytes_per_s,
        reserved_bytes_per_s=reserved_rate(cap_bytes_per_s, control_ratio),
        now_s=time.monotonic,
    )


@asynccontextmanager
async def keeping_books(
    config: NodeConfig,
    book: MonthlyUse,
    network: NetworkClient | None,
    log: EventLog,
    stop: asyncio.Event,
) -> AsyncIterator[None]:
    """Saves, warns and shows while the context is open.

    Args:
        config: Of this node.
        book: Its sums.
        network: Its network process, which counts what it gives away.
        log: For events.
        stop: Is set when the download quota is used up.

    Yields:
        Nothing.
    """
    keeper = _Keeper(config, book, network, log, stop)
    keeper.show()
    watching = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        keeper.save()
        keeper.show()


class _Keeper:
    def __init__(
        self,
        config: NodeConfig,
        book: MonthlyUse,
        network: NetworkClient | None,
        log: EventLog,
        stop: asyncio.Event,
    ) -> None:
        self._config = config
        self._book = book
        self._network = network
        self._log = log
        self._stop = stop
        self._counted = (0, 0)
        """Network process, and its bytes that are in the book."""
        self._told = (0, True)
        self._is_broken = False
        self._shown: dict[str, object] = {}
        if book.trouble:
            self._warn(book.trouble)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        saved_at_s = shown_at_s = loop.time()
        while True:
            self._look()
            await asyncio.sleep(LOOK_EVERY_S)
            now_s = loop.time()
            is_due = now_s - saved_at_s >= SAVE_EVERY_S
            if is_due and self._network is not None:
                await self._ask_network(self._network)
            if is_due or self._book.num_unsaved_bytes >= SAVE_AFTER_BYTES:
                await asyncio.to_thread(self.save)
                saved_at_s = now_s
            if now_s - shown_at_s >= SHOW_EVERY_S:
                self.show()
                shown_at_s = now_s

    def _look(self) -> None:
        for notice in self._book.notices():
            self._warn(notice)
        if self._book.exhausted("down"):
            self._stop.set()

    def save(self) -> None:
        try:
            self._book.save()
        except OSError as error:
            if not self._is_broken:
                self._warn(f"the month's sums cannot be saved: {error}")
            self._is_broken = True

    def show(self) -> None:
        """One event about caps, quotas and what is used, if it differs from the last one."""
        section, sums = self._config.bandwidth, self._book.sums()
        fields: dict[str, object] = {
            "month": sums.month,
            "uploaded_bytes": sums.up,
            "downloaded_bytes": sums.down,
            "upload_quota_bytes": section.monthly_upload_bytes,
            "download_quota_bytes": section.monthly_download_bytes,
            "upload_cap_bytes_per_s": section.upload_bytes_per_s,
            "download_cap_bytes_per_s": section.download_bytes_per_s,
        }
        if fields != self._shown:
            self._shown = fields
            self._log.emit(EventName.BANDWIDTH, **fields)

    async def _ask_network(self, network: NetworkClient) -> None:
        """What the process has given away since it was asked last; tells it whether it may."""
        try:
            status = await network.status(SAVE_EVERY_S)
            process, num_counted = self._counted
            is_new = process != status.process_id
            self._book.add("up", status.num_bytes_up - (0 if is_new else num_counted))
            self._counted = (status.process_id, status.num_bytes_up)
            wanted = (status.process_id, not self._book.exhausted("up"))
            known = self._told if self._told[0] == status.process_id else (status.process_id, True)
            if wanted != known:
                await network.allow_uploads(allowed=wanted[1], timeout_s=SAVE_EVERY_S)
            self._told = wanted
        except StorageError as error:
            logger.debug("the network process does not say what it has sent: %s", error)

    def _warn(self, message: str) -> None:
        self._log.emit(EventName.WARNING, message=message)
        logger.warning("%s", message)
