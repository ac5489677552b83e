"""One point per round, and as many of them as a page can draw.

Guarantees: at most `max_points` are kept; when there are more, every second one of the older half
goes, so that the shape of a long run stays visible; a replay after a restart adds nothing.

Does not do: average. A kept point is exactly what the round's report said.
"""

from dataclasses import dataclass

from shoal.node.web.event_fields import (
    Event,
    flag,
    number,
    numbers,
    rate,
    seconds,
    spread,
    text,
    whole,
)

MAX_POINTS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundPoint:
    """What the page and the status screen show of one round; field names as in RoundReport."""

    round_id: int
    time_s: float
    state_hash: str
    void: bool
    counted: bool
    replayed: bool
    num_counted: int
    num_accepted: int
    num_rejected: int
    round_s: float
    train_s: float
    stage_s: float
    upload_s: float
    wait_s: float
    apply_s: float
    exposed_communication_s: float
    communication_ratio: float
    mean_loss: float | None
    held_out_loss: float | None
    gather_median_s: float | None
    gather_p95_s: float | None
    gather_worst_s: float | None
    uploaded_bytes: int
    downloaded_bytes: int
    total_bytes: int
    """Moved in both directions since the first round."""
    upload_bytes_per_s: float | None
    relative_squared_error: float | None
    residual_norm: float | None
    update_norm: float | None
    tokens: int


class RoundPoints:
    """The points of one node, oldest first."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self.kept: list[RoundPoint] = []

    @property
    def last(self) -> RoundPoint | None:
        """The newest one."""
        return self.kept[-1] if self.kept else None

    def take(self, report: Event) -> RoundPoint | None:
        """Adds a round's report; None if the round is known already."""
        last = self.last
        if last is not None and whole(report, "round_id") <= last.round_id:
            return None
        point = _point(report, 0 if last is None else last.total_bytes)
        self.kept.append(point)
        if len(self.kept) > self._max_points:
            half = self._max_points // 2
            self.kept = self.kept[:half:2] + self.kept[half:]
        return point


def _point(report: Event, bytes_before: int) -> RoundPoint:
    up, down = whole(report, "uploaded_bytes"), whole(report, "downloaded_bytes")
    middle, p95, worst = spread(list(numbers(report, "gather_latency_s").values()))
    return RoundPoint(
        round_id=whole(report, "round_id"),
        time_s=seconds(report, "time_s"),
        state_hash=text(report, "state_hash", max_chars=64),
        void=flag(report, "void"),
        counted=flag(report, "counted"),
        replayed=flag(report, "replayed"),
        num_counted=whole(report, "num_counted"),
        num_accepted=whole(report, "num_accepted"),
        num_rejected=int(sum(numbers(report, "rejected").values())),
        round_s=seconds(report, "round_s"),
        train_s=seconds(report, "train_s"),
        stage_s=seconds(report, "stage_s"),
        upload_s=seconds(report, "upload_s"),
        wait_s=seconds(report, "wait_s"),
        apply_s=seconds(report, "apply_s"),
        exposed_communication_s=seconds(report, "exposed_communication_s"),
        communication_ratio=seconds(report, "communication_ratio"),
        mean_loss=number(report, "mean_loss"),
        held_out_loss=number(report, "held_out_loss"),
        gather_median_s=middle,
        gather_p95_s=p95,
        gather_worst_s=worst,
        uploaded_bytes=up,
        downloaded_bytes=down,
        total_bytes=bytes_before + up + down,
        upload_bytes_per_s=rate(up, seconds(report, "upload_s")),
        relative_squared_error=number(report, "relative_squared_error"),
        residual_norm=number(report, "residual_norm"),
        update_norm=number(report, "update_norm"),
        tokens=whole(report, "tokens"),
    )
