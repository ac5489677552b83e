"""The figures of a run, from its nodes' event logs.

Two measures, because peers that wait for slower ones are idle anyway:

* a node's own (`exposed_communication_s` of its report): transfers go on while it computes nothing;
* the swarm's: no peer trains, stages or applies, so that the whole swarm waits for the network, the
  closing of the round and the polling. Nothing is left out of it.

Does not do: decide which is the better one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.overlap.logs import Event
from shoal.node.telemetry.round_timer import Interval, measure, overlap, union


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Medians over all rounds but the first, which overlaps nothing, and the last."""

    round_s: float
    own_ratio: Mapping[str, float]
    """By peer: its exposed communication over the round's time."""
    swarm_ratio: float
    """Time in which no peer computed, over the round's time."""
    num_state_hashes: int
    """Different ones among all nodes in any one round; 1 is right."""
    num_rounds: int


def figures_of(logs: Mapping[str, Sequence[Event]], num_rounds: int) -> Figures:
    """Derives the figures of a run that is over.

    Args:
        logs: events by node; peers are those whose reports say so.
        num_rounds: of the run, at least 4.

    Raises:
        ValueError: a node lacks the report of a round.
    """
    reports = {name: _reports(events, num_rounds) for name, events in logs.items()}
    peers = [name for name, found in reports.items() if found[0]["role"] == "peer"]
    middle = range(1, num_rounds - 1)
    busy = union([i for name in peers for i in computing(logs[name])])
    ends = [min(reports[name][r]["time_s"] for name in peers) for r in range(num_rounds)]
    spans = [(ends[r - 1], ends[r]) for r in middle]
    return Figures(
        round_s=median(end - start for start, end in spans),
        own_ratio={
            name: median(reports[name][r]["communication_ratio"] for r in middle) for name in peers
        },
        swarm_ratio=median(
            1 - measure(overlap([span], busy)) / (span[1] - span[0]) for span in spans
        ),
        num_state_hashes=max(
            len({found[r]["state_hash"] for found in reports.values()}) for r in range(num_rounds)
        ),
        num_rounds=len(spans),
    )


def _reports(events: Sequence[Event], num_rounds: int) -> list[Event]:
    found = {e["round_id"]: e for e in events if e["event"] == "round"}
    if sorted(found) != list(range(1, num_rounds + 1)):
        raise ValueError(f"reports of rounds {sorted(found)}, expected 1 to {num_rounds}")
    return [found[r] for r in sorted(found)]


def computing(events: Sequence[Event]) -> list[Interval]:
    """When a peer trained, staged or applied, on its clock.

    An inner loop lasts from the first step's end, less the time from that to the second, to the
    last step's; staging and applying end with an event and their time is in the report.
    """
    intervals: list[Interval] = []
    steps: dict[int, list[float]] = {}
    staged: dict[int, float] = {}
    for event in events:
        if event["event"] == "inner-step":
            steps.setdefault(event["round_id"], []).append(event["time_s"])
        elif event["event"] == "payload-staged":
            staged[event["round_id"]] = event["time_s"]
        elif event["event"] == "round":
            end_s = event["time_s"]
            intervals.append((end_s - event["apply_s"], end_s))
            if event["round_id"] in staged:
                end_s = staged[event["round_id"]]
                intervals.append((end_s - event["stage_s"], end_s))
    for times in steps.values():
        first_s = times[1] - times[0] if len(times) > 1 else 0.0
        intervals.append((times[0] - first_s, times[-1]))
    return intervals
