"""How long the phases of a round took, and how much of it was exposed communication.

Guarantees: exposed communication is the time within the round in which at least one transfer with
bytes was going on while this node neither trained nor staged nor applied; overlapping transfers
count once. Does not do: read a clock (it is given one) or decide what a phase is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from shoal.storage.meter import SERVED, Transfer

Interval = tuple[float, float]


class PhaseName(StrEnum):
    """What is timed."""

    TRAIN = "train"
    STAGE = "stage"
    UPLOAD = "upload"
    WAIT = "wait"
    APPLY = "apply"


_COMPUTING = (PhaseName.TRAIN, PhaseName.STAGE, PhaseName.APPLY)


class RoundTimer:
    """Collects the intervals of one round."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.started_s = now_s()
        self._intervals: dict[PhaseName, list[Interval]] = {name: [] for name in PhaseName}

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """Times what happens inside."""
        start_s = self._now_s()
        try:
            yield
        finally:
            self._intervals[name].append((start_s, self._now_s()))

    def seconds(self, name: PhaseName) -> float:
        """Total time of a phase."""
        return sum(end - start for start, end in self._intervals[name])

    def elapsed_s(self) -> float:
        """Since the round began."""
        return self._now_s() - self.started_s

    def exposed_communication_s(
        self, transfers: Sequence[Transfer], busy: Sequence[Interval] = ()
    ) -> float:
        """Time with a transfer going on and no computation.

        Args:
            transfers: of the round; what was served to others is none of this node's waiting.
            busy: when else this node computed: inner loops that run ahead of their round.
        """
        moving = [
            (t.started_at_s, t.started_at_s + t.total_s)
            for t in transfers
            if t.num_bytes > 0 and t.kind != SERVED
        ]
        computing = [*busy, *(i for name in _COMPUTING for i in self._intervals[name])]
        clipped = [(max(start, self.started_s), end) for start, end in moving]
        return measure(union(clipped)) - measure(overlap(union(clipped), union(computing)))


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """The same points as sorted, disjoint intervals."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[0] < i[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def overlap(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The points that are in both; each list is sorted and disjoint."""
    found = [
        (max(a[0], b[0]), min(a[1], b[1]))
        for a in first
        for b in second
        if max(a[0], b[0]) < min(a[1], b[1])
    ]
    return sorted(found)


def measure(intervals: Sequence[Interval]) -> float:
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in intervals)
