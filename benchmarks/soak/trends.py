"""How memory and descriptors move over a process's life: robust slopes, by kind of process.

Guarantees: the slope of a series is the median of the slopes of its pairs (Theil and Sen), which a
third of outliers does not move; a process that was started again is a series of its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.soak.processes import Process, Sample

_MAX_POINTS = 400
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One figure of one kind of process."""

    kind: str
    num_series: int
    num_long: int
    """Series that are long enough for a slope."""
    hours: float
    """Of the long series together, after their first minutes."""
    slope_per_h: float | None
    """Median over the long series, each with the weight of its length."""
    worst_per_h: float | None
    """Largest slope of a series that is at least as long as half the longest."""
    highest: float
    """Largest value of all."""


def series_of(samples: Iterable[Sample]) -> dict[Process, list[Sample]]:
    """The samples by process, in order of time."""
    found: dict[Process, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.process, []).append(sample)
    return found


def trends(
    samples: Sequence[Sample],
    value: Callable[[Sample], float],
    *,
    warm_up_s: float,
    min_span_s: float,
) -> list[Trend]:
    """The trend of one figure for every kind of process.

    Args:
        samples: of all processes.
        value: the figure.
        warm_up_s: a process's first time, which is left out.
        min_span_s: what must remain for a slope.
    """
    by_kind: dict[str, list[list[Sample]]] = {}
    for process, series in series_of(samples).items():
        by_kind.setdefault(process.kind, []).append(series)
    return [
        _trend(kind, all_series, value, warm_up_s, min_span_s)
        for kind, all_series in sorted(by_kind.items())
    ]


def _trend(
    kind: str,
    all_series: list[list[Sample]],
    value: Callable[[Sample], float],
    warm_up_s: float,
    min_span_s: float,
) -> Trend:
    spans, slopes = [], []
    for series in all_series:
        warm = [s for s in series if s.time_s >= series[0].time_s + warm_up_s]
        if len(warm) > 2 and warm[-1].time_s - warm[0].time_s >= min_span_s:
            spans.append(warm[-1].time_s - warm[0].time_s)
            slopes.append(slope_per_h([s.time_s for s in warm], [value(s) for s in warm]))
    longest = max(spans, default=0.0)
    return Trend(
        kind=kind,
        num_series=len(all_series),
        num_long=len(slopes),
        hours=sum(spans) / HOUR_S,
        slope_per_h=_weighted_median(slopes, spans) if slopes else None,
        worst_per_h=max(
            (slope for slope, span in zip(slopes, spans, strict=True) if span >= longest / 2),
            default=None,
        ),
        highest=max(value(s) for series in all_series for s in series),
    )


def slope_per_h(times_s: Sequence[float], values: Sequence[float]) -> float:
    """The median slope of all pairs, per hour; of a series of more than 400 points every nth."""
    step = -(-len(times_s) // _MAX_POINTS)
    times, found = np.asarray(times_s[::step]), np.asarray(values[::step])
    first, second = np.triu_indices(len(times), 1)
    slopes = (found[second] - found[first]) / (times[second] - times[first])
    return float(np.median(slopes)) * HOUR_S


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    order = np.argsort(values)
    reached = np.cumsum(np.asarray(weights)[order])
    return float(np.asarray(values)[order][np.searchsorted(reached, reached[-1] / 2)])
