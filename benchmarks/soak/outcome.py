"""What a soak has seen, and the figures that follow from it.

Guarantees: counts come from the records, hashes from the nodes' event logs; nothing is judged here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from benchmarks.soak.faults import Fault
from benchmarks.soak.processes import Sample
from shoal.node.swarm_events import NodeView
from shoal.protocol.identity import PeerId
from shoal.protocol.record import VerifiedRecord
from shoal.protocol.record_body import RoundRecord


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything that was seen, after the end of all nodes."""

    began_at_s: float
    """Unix seconds, when every peer had counted once."""
    ended_at_s: float
    """When the last fault was healed and no more came."""
    records: list[VerifiedRecord]
    """Of the whole run."""
    views: list[NodeView]
    peers: dict[str, PeerId]
    """By node name, without the validator."""
    kinds: dict[str, str]
    """s3 or p2p, by node name."""
    faults: list[Fault]
    samples: list[Sample]
    samples_began_at_s: float
    unexpected: list[str]
    """Nodes that ended though nothing had hit them."""
    failed_to_leave: list[str]
    late: list[str]
    """Nodes that had not caught up in time at the end."""
    orphans: dict[int, str]
    leftovers: list[str]
    """Files and sockets that nobody needs any more."""


def soaked(outcome: Outcome) -> list[RoundRecord]:
    """The records of the rounds that closed while faults were made."""
    found = [verified.record for verified in outcome.records]
    return [r for r in found if outcome.began_at_s <= r.closed_at_ms / 1000 <= outcome.ended_at_s]


def payload_goodput(outcome: Outcome) -> float:
    """Payloads that counted, as a share of one for each peer and round."""
    rounds = soaked(outcome)
    possible = len(rounds) * len(outcome.peers)
    return sum(len(r.counted) for r in rounds) / possible if possible else 0.0


def goodput_by_peer(outcome: Outcome) -> dict[str, float]:
    """The share of the rounds in which a peer's payload counted, by node name."""
    rounds = soaked(outcome)
    counted = [{entry.peer for entry in r.counted} for r in rounds]
    return {
        name: sum(peer in one for one in counted) / len(rounds) if rounds else 0.0
        for name, peer in outcome.peers.items()
    }


def undisturbed_round_s(outcome: Outcome) -> float:
    """Median duration of the rounds that no fault touched; of all, where there is none."""
    rounds = soaked(outcome)
    pairs = [(a.closed_at_ms / 1000, b.closed_at_ms / 1000) for a, b in pairwise(rounds)]
    calm = [
        end - start
        for start, end in pairs
        if not any(f.began_at_s < end and f.ended_at_s > start for f in outcome.faults)
    ]
    return median(calm or [end - start for start, end in pairs] or [0.0])


def rounds_goodput(outcome: Outcome) -> float:
    """Rounds that closed with payloads, as a share of the undisturbed ones that had found room."""
    good = [r for r in soaked(outcome) if not r.void]
    room_s = outcome.ended_at_s - outcome.began_at_s
    return len(good) * undisturbed_round_s(outcome) / room_s if room_s > 0 else 0.0


def recovery_s(outcome: Outcome, fault: Fault) -> float | None:
    """From a fault's end until what it hit took part again; None if that was not seen.

    A peer takes part when its payload counts in a round that began after the fault; the S3 server
    and the validator when a round closes with payloads.
    """
    peer = outcome.peers.get(fault.target)
    opened_at_s = 0.0
    for verified in outcome.records:
        record, closed_at_s = verified.record, verified.record.closed_at_ms / 1000
        if peer is None:
            recovered = closed_at_s >= fault.ended_at_s and not record.void
        else:
            recovered = opened_at_s >= fault.ended_at_s and peer in {e.peer for e in record.counted}
        if recovered:
            return closed_at_s - fault.ended_at_s
        opened_at_s = closed_at_s
    return None


def differing(outcome: Outcome) -> list[str]:
    """Where a node's state hash is not that of the record, or its parameters are not its root."""
    by_round = {v.record.round_id: v.record for v in outcome.records}
    found = []
    for view in outcome.views:
        for round_id, report in view.reports.items():
            record = by_round.get(round_id)
            if record is None or report["state_hash"] != record.state.hex():
                found.append(f"{view.name}: another state after round {round_id}")
        last = by_round.get(max(view.reports, default=0))
        root = view.parameters_root
        if last is None or not last.params_root or root != last.params_root.hex():
            found.append(f"{view.name}: parameters {root or 'unknown'} at its end")
    return found


def last_rounds(views: Sequence[NodeView]) -> dict[str, int]:
    """The last round that each node has applied."""
    return {view.name: max(view.reports, default=0) for view in views}
