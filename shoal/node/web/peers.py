"""What is known of the other peers of one node: latency and bandwidth, by peer.

Guarantees: a peer is known only once a payload of it was verified, so nobody adds names by sending
garbage; at most `MAX_PEERS` are kept, the ones seen last; given a roster, only its members.

Does not do: judge.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass

from shoal.node.web.event_fields import Event, numbers, printable, rate, seconds, table, whole

MAX_PEERS = 64
_SHORT_CHARS = 6
"""`PeerId.short`, by which transfers are labelled."""
_MAX_ID_CHARS = 80


@dataclass(slots=True, kw_only=True)
class PeerStats:
    """One peer as this node saw it, since the first round of the log."""

    peer: str
    num_payloads: int = 0
    num_bytes: int = 0
    transfer_s: float = 0.0
    latency_s: float = 0.0
    """Of the last round it was gathered in."""
    round_bytes_per_s: float | None = None
    """Of the last round with a download."""
    round_id: int = 0


class Peers:
    """All known peers of one node."""

    def __init__(self, roster: Collection[str] | None = None) -> None:
        self._roster = roster
        self._by_id: dict[str, PeerStats] = {}

    def take(self, report: Event) -> None:
        """Takes in a round's report."""
        latencies = numbers(report, "gather_latency_s")
        downloads = table(report, "downloads")
        for peer, latency_s in list(latencies.items())[:MAX_PEERS]:
            if self._roster is None or peer in self._roster:
                stats = self._known(printable(peer, _MAX_ID_CHARS))
                stats.num_payloads += 1
                stats.latency_s = latency_s
                stats.round_id = whole(report, "round_id")
                _add_download(stats, downloads.get(peer[-_SHORT_CHARS:]))

    def _known(self, peer: str) -> PeerStats:
        """Moves the peer to the end: the first one is the one that goes."""
        stats = self._by_id.pop(peer, None) or PeerStats(peer=peer)
        self._by_id[peer] = stats
        if len(self._by_id) > MAX_PEERS:
            del self._by_id[next(iter(self._by_id))]
        return stats

    def all(self) -> list[PeerStats]:
        """Sorted by id."""
        return [self._by_id[peer] for peer in sorted(self._by_id)]

    def plain(self) -> list[dict[str, object]]:
        """For JSON, with the mean bandwidth."""
        return [
            {**asdict(stats), "bytes_per_s": rate(stats.num_bytes, stats.transfer_s)}
            for stats in self.all()
        ]


def _add_download(stats: PeerStats, download: object) -> None:
    if not isinstance(download, dict):
        return
    num_bytes, transfer_s = whole(download, "num_bytes"), seconds(download, "transfer_s")
    stats.num_bytes += num_bytes
    stats.transfer_s += transfer_s
    stats.round_bytes_per_s = rate(num_bytes, transfer_s)
