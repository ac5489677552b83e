"""Doctor's look at `[bandwidth]`: do this node's own caps and quotas let it take part?

Guarantees: computed from manifest, configuration and the month's sums alone; nothing is moved. A
round must be possible at the capped speed even if the link itself is faster.
"""

from typing import Final

from shoal.node.bandwidth import make_bandwidth, network_caps
from shoal.node.clock import SystemClock
from shoal.node.config import NodeConfig
from shoal.node.doctor_lines import DoctorCode, Level, Line, failure, ok, size_text, warning
from shoal.node.monthly_use import MonthlyUse
from shoal.node.store_keys import P2P
from shoal.protocol.manifest import RunManifest
from shoal.storage.allowance import Direction
from shoal.storage.pacing import RateLimit

_FAILURE_RATIO: Final = 0.5
"""Of a round, as for the measured speeds."""
_WARNING_RATIO: Final = 0.2
_MONTH_S: Final = 30 * 86_400.0
_LEAST_UPLOAD_BYTES_PER_S: Final = 65_536
"""Servers give up a sender that is slower."""
_WORDS: Final[dict[Direction, str]] = {"up": "upload", "down": "gather"}


def check_bandwidth(manifest: RunManifest, config: NodeConfig, *, trains: bool) -> list[Line]:
    """A line for every cap and quota; one that says so where there is none.

    Args:
        manifest: Of the run.
        config: Of the node.
        trains: Whether it uploads a payload in every round.
    """
    bandwidth, book = make_bandwidth(config, SystemClock(config.clock_offset_s).now_s)
    parts = dict(zip(("up", "down"), network_caps(config), strict=True))
    gathered = manifest.payload_bytes * max(manifest.outer.gather_limit - 1, 1)
    needed: dict[Direction, int] = {"up": manifest.payload_bytes * trains, "down": gathered}
    if config.store.kind == "directory" and config.payloads.kind == "store":
        # Payloads are on a disk of this machine: they cross no link.
        needed = {"up": 0, "down": 0}
    lines = [_trouble(book.trouble)] if book.trouble else []
    for direction, num_bytes in needed.items():
        rate = bandwidth.rate(direction)
        if rate is not None and num_bytes:
            uses_network = P2P in (config.payloads.kind, config.store.kind)
            bulk = parts[direction] if uses_network else _bulk_rate(rate)
            lines.append(_cap(direction, num_bytes / bulk, bulk, manifest))
        if book.quota(direction):
            lines.append(_quota(direction, num_bytes, book, manifest))
    return lines or [ok(DoctorCode.BANDWIDTH, "no cap or quota is in the way of a round")]


def _trouble(found: str) -> Line:
    fix = "put its copy back while the node is stopped, or let the node begin the month anew"
    return warning(DoctorCode.BANDWIDTH, found, fix)


def _bulk_rate(rate: RateLimit) -> float:
    return rate.bytes_per_s - rate.reserved_bytes_per_s


def _cap(direction: Direction, seconds: float, bulk: float, manifest: RunManifest) -> Line:
    round_s = manifest.timing.round_seconds
    name = "upload_bytes_per_s" if direction == "up" else "download_bytes_per_s"
    found = (
        f"a round's {_WORDS[direction]} takes {seconds:.1f} s of your {round_s:.0f} s at your cap"
    )
    fix = f"raise [bandwidth] {name}, or use a run with smaller payloads or longer rounds"
    if direction == "up" and bulk < _LEAST_UPLOAD_BYTES_PER_S:
        found += f"; servers give up senders below {size_text(_LEAST_UPLOAD_BYTES_PER_S)}/s"
        return failure(DoctorCode.BANDWIDTH, found, fix)
    if seconds > _FAILURE_RATIO * round_s:
        return failure(DoctorCode.BANDWIDTH, found, fix)
    if seconds > _WARNING_RATIO * round_s:
        return warning(DoctorCode.BANDWIDTH, found, fix)
    return ok(DoctorCode.BANDWIDTH, found)


def _quota(direction: Direction, num_bytes: int, book: MonthlyUse, manifest: RunManifest) -> Line:
    reason = book.exhausted(direction)
    word = "upload" if direction == "up" else "download"
    name = f"monthly_{word}_bytes"
    if reason:
        return failure(DoctorCode.BANDWIDTH, reason, f"raise [bandwidth] {name}, or wait")
    left = book.quota(direction) - book.sums().of(direction)
    found = f"{size_text(left)} of the month's {word} quota are left"
    if not num_bytes:
        return ok(DoctorCode.BANDWIDTH, found)
    lasts_s = left / num_bytes * manifest.timing.round_seconds
    found += f": full rounds for about {_days(lasts_s)}"
    level = Level.OK if lasts_s >= _MONTH_S else Level.WARNING
    fix = "" if level is Level.OK else f"raise [bandwidth] {name}, or train part of the time"
    return Line(code=DoctorCode.BANDWIDTH, level=level, found=found, fix=fix)


def _days(seconds: float) -> str:
    days = seconds / 86_400
    return f"{days:.0f} days" if days >= 2 else f"{days * 24:.1f} hours"
