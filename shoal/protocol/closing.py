"""When a round closes, and every time limit that follows from the one knob `round_seconds`.

Rules, in this order (`should_close`):

1. Nobody has published: the round stays open, for ever if need be; there is nobody to serve.
2. Everybody that is waited for has published, and at least `min_peers` have: "all-published". In
   a round's first tenth the rule also wants `target_peers`, so that the first peer to arrive in a
   new run does not make up the run alone.
3. `target_peers` payloads are there and median + 3 MAD of the arrival times has passed:
   "target-reached". In an open run newcomers, peers that did not count in the last record, fill up
   only what those who did leave of the target: a crowd of new keys that publish at once must not
   close a round before the others have trained.
4. `round_seconds` have passed: "round-over" (fewer than `min_peers`: the record will be void).

Who is waited for (`waited_for`): peers that say they attend this round, less those that said so in
the round before and published nothing at all (not even late): one silent round costs a peer the
courtesy, one publication wins it back. A peer that is not waited for still counts when in time.

Does not do: read a clock. All times are seconds on one clock of the caller's.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from statistics import median

from shoal.protocol.identity import PeerId
from shoal.protocol.record_body import CloseReason


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Every time limit of a round, derived from `round_seconds`; printed at start."""

    round_s: float
    """A round that somebody published in closes after this time at the latest."""
    training_s: float
    """A peer stops its inner steps after this time, so that its upload is in time."""
    poll_s: float
    """How often a node looks for announcements and the record."""
    transfer_s: float
    """One download may take this long in all."""
    settle_s: float
    """Rule 2's first part of a round, in which the target is wanted too."""


def derive_limits(round_seconds: float) -> TimeLimits:
    """The limits that follow from the manifest's one knob.

    Args:
        round_seconds: the longest duration of a round, seconds.
    """
    return TimeLimits(
        round_s=round_seconds,
        training_s=round_seconds * 0.75,
        poll_s=min(max(round_seconds / 500, 0.05), 2.0),
        transfer_s=max(round_seconds / 2, 5.0),
        settle_s=round_seconds / 10,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Attendance:
    """What a validator has seen of the open round, all from verified announcements and payloads."""

    opened_at_s: float
    attending: frozenset[PeerId]
    arrivals_s: tuple[tuple[PeerId, float], ...]
    """Peers whose payload was accepted, with the time of its announcement."""
    failed: frozenset[PeerId] = frozenset()
    """Peers whose payload was refused: nothing more is expected of them."""
    steady: frozenset[PeerId] | None = None
    """Peers that counted in the last record; None: no difference is made."""


def waited_for(
    attending: Set[PeerId], attended_before: Set[PeerId], published_before: Set[PeerId]
) -> frozenset[PeerId]:
    """Those whose payload a round waits for (see the module's rules).

    Args:
        attending: peers that attend the open round.
        attended_before: peers that attended the round before.
        published_before: peers that published for the round before, late ones too.
    """
    return frozenset(attending) - (frozenset(attended_before) - frozenset(published_before))


def should_close(
    attendance: Attendance,
    expected: Iterable[PeerId],
    now_s: float,
    *,
    min_peers: int,
    target_peers: int,
    limits: TimeLimits,
) -> CloseReason | None:
    """Why the round closes now, or None while it stays open.

    Args:
        attendance: what was seen of the round.
        expected: `waited_for` of the round.
        now_s: the time, on the clock of `attendance`.
        min_peers: fewer payloads make a void record.
        target_peers: enough payloads to stop waiting for stragglers.
        limits: the derived time limits.
    """
    num_arrived = len(attendance.arrivals_s)
    towards_target_s = _towards_target_s(attendance, target_peers)
    age_s = now_s - attendance.opened_at_s
    if num_arrived == 0 and not attendance.failed:
        return None
    arrived = {peer for peer, _ in attendance.arrivals_s}
    has_target = len(towards_target_s) >= target_peers
    settled = has_target or age_s >= limits.settle_s
    if settled and num_arrived >= min_peers and frozenset(expected) <= arrived | attendance.failed:
        return CloseReason.ALL_PUBLISHED
    if has_target and now_s >= _straggler_deadline_s(towards_target_s):
        return CloseReason.TARGET_REACHED
    if age_s >= limits.round_s:
        return CloseReason.ROUND_OVER
    return None


def _towards_target_s(attendance: Attendance, target_peers: int) -> list[float]:
    """The arrival times that count towards the target."""
    steady = attendance.steady
    if steady is None:
        return [time for _, time in attendance.arrivals_s]
    known = [time for peer, time in attendance.arrivals_s if peer in steady]
    others = sorted(time for peer, time in attendance.arrivals_s if peer not in steady)
    return known + others[: max(target_peers - len(steady), 0)]


def _straggler_deadline_s(times: Sequence[float]) -> float:
    """Median + 3 MAD of the arrival times: robust against one very early or very late peer."""
    middle = median(times)
    return middle + 3 * median(abs(time - middle) for time in times)
