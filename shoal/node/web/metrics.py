"""The same figures for Prometheus.

Guarantees: names are constants, frozen by a test; labels are bounded: `code` is an ErrorCode (or
OTHER), `peer` is a peer whose payload this node verified (a roster's member, if there is a roster),
at most `MAX_LABELLED_PEERS` of them; what was not measured is absent, never 0.

Does not do: keep anything. Counters are sums over the log, so a restart does not set them back.
prometheus_client enters here and nowhere else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.node.web.bandwidth_use import BandwidthUse
from shoal.node.web.history import NodeHistory
from shoal.node.web.peers import PeerStats
from shoal.node.web.round_points import RoundPoint

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MAX_LABELLED_PEERS = 32

Sample = tuple[tuple[str, ...], float | None]


class NodeCollector(Collector):
    """Gives one node's metrics at every scrape.

    Args:
        history: of the node.
        num_clients: how many pages are open.
    """

    def __init__(self, history: NodeHistory, num_clients: Callable[[], int]) -> None:
        self._history = history
        self._num_clients = num_clients

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        yield from self._node()
        yield from self._totals()
        point = self._history.points.last
        if point is not None:
            yield from _round(point)
        yield from _peers(self._history.peers.all())
        if self._history.bandwidth is not None:
            yield from _bandwidth(self._history.bandwidth)

    def _node(self) -> Iterator[Metric]:
        history = self._history
        names = ("peer", "role", "run")
        info = (history.peer, history.role, history.run_id)
        yield _gauge("shoal_node_info", "Always 1; who this is.", names, [(info, 1.0)])
        now = history.now
        yield _one("shoal_round", "The round in progress, or the last one.", now.round_id)
        yield _one("shoal_inner_step", "Inner steps done in this round.", now.step)
        yield _one("shoal_inner_step_loss", "Loss of the last inner step.", now.step_loss)
        name = "shoal_last_event_timestamp_seconds"
        yield _one(name, "When the node last said anything.", now.heard_at_s)
        yield _one("shoal_web_clients", "Pages that are open.", self._num_clients())

    def _totals(self) -> Iterator[Metric]:
        totals = self._history.totals
        yield _count("shoal_rounds", "Rounds applied.", totals.num_rounds)
        yield _count("shoal_rounds_counted", "Rounds that count this node.", totals.num_counted)
        yield _count("shoal_rounds_void", "Rounds that nobody filled.", totals.num_void)
        yield _count("shoal_tokens", "Tokens trained on.", totals.tokens)
        yield _count("shoal_uploaded_bytes", "Bytes sent.", totals.uploaded_bytes)
        yield _count("shoal_downloaded_bytes", "Bytes received.", totals.downloaded_bytes)
        yield _count("shoal_payloads_accepted", "Payloads verified.", totals.num_accepted)
        name, text = "shoal_exposed_communication_seconds", "Spent on nothing but transfers."
        yield _count(name, text, totals.exposed_communication_s)
        yield _count("shoal_warnings", "Warnings in the event log.", totals.num_warnings)
        rejected = CounterMetricFamily(
            "shoal_payloads_rejected", "Payloads refused, by reason.", labels=["code"]
        )
        for code, count in sorted(self._history.rejected.items()):
            rejected.add_metric([code], count)
        yield rejected


def _round(point: RoundPoint) -> Iterator[Metric]:
    """The last applied round."""
    phases = {
        "all": point.round_s,
        "train": point.train_s,
        "stage": point.stage_s,
        "upload": point.upload_s,
        "wait": point.wait_s,
        "apply": point.apply_s,
    }
    yield _by("shoal_round_seconds", "Duration of the last round.", "phase", phases)
    losses = {"mean": point.mean_loss, "held_out": point.held_out_loss}
    yield _by("shoal_loss", "Loss in the last round, nats per token.", "kind", losses)
    latencies = {
        "median": point.gather_median_s,
        "p95": point.gather_p95_s,
        "worst": point.gather_worst_s,
    }
    name, text = "shoal_gather_latency_seconds", "Announced to verified, last round."
    yield _by(name, text, "statistic", latencies)
    ratio = point.communication_ratio
    yield _one("shoal_exposed_communication_ratio", "Its share of the last round.", ratio)
    yield _one("shoal_round_payloads_counted", "Payloads in the last record.", point.num_counted)
    yield _one("shoal_update_norm", "Norm of the last outer update.", point.update_norm)
    yield _one("shoal_residual_norm", "Norm of what error feedback keeps.", point.residual_norm)
    error = point.relative_squared_error
    yield _one("shoal_quantization_error_ratio", "Relative squared error, last round.", error)


def _peers(peers: Sequence[PeerStats]) -> Iterator[Metric]:
    kept = sorted(peers, key=lambda p: p.round_id, reverse=True)[:MAX_LABELLED_PEERS]
    latencies: list[Sample] = [((p.peer,), p.latency_s) for p in kept]
    name, text = "shoal_peer_gather_latency_seconds", "Announced to verified, last time."
    yield _gauge(name, text, ("peer",), latencies)
    rates: list[Sample] = [((p.peer,), p.round_bytes_per_s) for p in kept]
    name, text = "shoal_peer_download_bytes_per_second", "While transferring, last time."
    yield _gauge(name, text, ("peer",), rates)
    down = CounterMetricFamily(
        "shoal_peer_downloaded_bytes", "Payload bytes from a peer.", labels=["peer"]
    )
    for p in kept:
        down.add_metric([p.peer], p.num_bytes)
    yield down


def _bandwidth(use: BandwidthUse) -> Iterator[Metric]:
    """A limit of 0 is none: absent."""
    used = {"up": float(use.uploaded_bytes), "down": float(use.downloaded_bytes)}
    name, text = "shoal_month_bytes", "Moved in this calendar month (UTC)."
    yield _by(name, text, "direction", used)
    quotas = {"up": use.upload_quota_bytes or None, "down": use.download_quota_bytes or None}
    yield _by("shoal_month_quota_bytes", "The month's quota, if any.", "direction", quotas)
    caps = {"up": use.upload_cap_bytes_per_s or None, "down": use.download_cap_bytes_per_s or None}
    yield _by("shoal_cap_bytes_per_second", "The cap, if any.", "direction", caps)


def _gauge(name: str, text: str, labels: Sequence[str], samples: Sequence[Sample]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family


def _one(name: str, text: str, value: float | None) -> Metric:
    return _gauge(name, text, (), [((), value)])


def _by(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    return _gauge(name, text, (label,), [((key,), value) for key, value in values.items()])


def _count(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def render(collector: NodeCollector) -> bytes:
    """One scrape's answer."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
