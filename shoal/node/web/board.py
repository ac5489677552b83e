"""All watched nodes together: what a page shows, and whether the nodes agree.

Guarantees: `snapshot` then any number of `changes` describe the same as a later `snapshot`; both
are bounded. Nodes are compared at the newest round that the most of them have.

Does not do: know how events arrive. One node's page has one history here; a page over a swarm would
have one per node, fed from the logs by `log_tail`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from shoal.node.web.event_fields import Event
from shoal.node.web.history import NodeHistory
from shoal.node.web.round_points import RoundPoint

STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """How many nodes hold the same state after one round."""

    round_id: int
    state_hash: str
    """The most frequent one."""
    equal: int
    of: int


class Board:
    """The histories, and which of their points are new."""

    def __init__(self, histories: Sequence[NodeHistory], now_s: Callable[[], float]) -> None:
        self.histories = {history.name: history for history in histories}
        self._now_s = now_s
        self._fresh: dict[str, list[RoundPoint]] = {}

    def take(self, name: str, event: Event) -> None:
        """Takes an event of one node."""
        point = self.histories[name].take(event)
        if point is not None:
            self._fresh.setdefault(name, []).append(point)

    def snapshot(self) -> str:
        """Everything, as JSON; what was new is part of it."""
        self._fresh.clear()
        return self._json({name: h.points.kept for name, h in self.histories.items()})

    def changes(self) -> str:
        """Everything but the points that were handed out before, as JSON."""
        fresh, self._fresh = self._fresh, {}
        return self._json(fresh)

    def _json(self, points: dict[str, list[RoundPoint]]) -> str:
        agreement = agree(list(self.histories.values()))
        nodes = [
            {**history.plain(), "rounds": [_plain(p) for p in points.get(name, ())]}
            for name, history in self.histories.items()
        ]
        whole = {
            "version": STATE_VERSION,
            "time_s": self._now_s(),
            "agreement": None if agreement is None else asdict(agreement),
            "nodes": nodes,
        }
        return json.dumps(whole, separators=(",", ":"), allow_nan=False)


def _plain(point: RoundPoint) -> dict[str, object]:
    """Several times as fast as asdict, which copies deeply; there are hundreds of points."""
    return {name: getattr(point, name) for name in RoundPoint.__slots__}


def agree(histories: Sequence[NodeHistory]) -> Agreement | None:
    """Compares state hashes at the newest round that most nodes have; None before any round."""
    tables = [{p.round_id: p.state_hash for p in h.points.kept} for h in histories]
    counts: dict[int, int] = {}
    for hashes in tables:
        for round_id in hashes:
            counts[round_id] = counts.get(round_id, 0) + 1
    if not counts:
        return None
    known = max(counts.values())
    round_id = max(r for r, count in counts.items() if count == known)
    found = [hashes[round_id] for hashes in tables if round_id in hashes]
    common = max(sorted(set(found)), key=found.count)
    return Agreement(round_id=round_id, state_hash=common, equal=found.count(common), of=len(found))
