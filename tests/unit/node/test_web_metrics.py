import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.node.web.history import OTHER_CODE, NodeHistory
from shoal.node.web.metrics import MAX_LABELLED_PEERS, NodeCollector, render
from shoal.protocol.errors import ErrorCode
from tests.support.web_events import log_events, report, started

# People build dashboards on these: change a name only with a note in the change log.
FROZEN = {
    "shoal_node_info": ("peer", "role", "run"),
    "shoal_round": (),
    "shoal_inner_step": (),
    "shoal_inner_step_loss": (),
    "shoal_last_event_timestamp_seconds": (),
    "shoal_web_clients": (),
    "shoal_rounds_total": (),
    "shoal_rounds_counted_total": (),
    "shoal_rounds_void_total": (),
    "shoal_tokens_total": (),
    "shoal_uploaded_bytes_total": (),
    "shoal_downloaded_bytes_total": (),
    "shoal_payloads_accepted_total": (),
    "shoal_payloads_rejected_total": ("code",),
    "shoal_exposed_communication_seconds_total": (),
    "shoal_warnings_total": (),
    "shoal_round_seconds": ("phase",),
    "shoal_loss": ("kind",),
    "shoal_gather_latency_seconds": ("statistic",),
    "shoal_exposed_communication_ratio": (),
    "shoal_round_payloads_counted": (),
    "shoal_update_norm": (),
    "shoal_residual_norm": (),
    "shoal_quantization_error_ratio": (),
    "shoal_peer_gather_latency_seconds": ("peer",),
    "shoal_peer_download_bytes_per_second": ("peer",),
    "shoal_peer_downloaded_bytes_total": ("peer",),
}
WITH_BANDWIDTH = {
    "shoal_month_bytes": ("direction",),
    "shoal_month_quota_bytes": ("direction",),
    "shoal_cap_bytes_per_second": ("direction",),
}
BANDWIDTH = {
    "event": "bandwidth",
    "time_s": 1.0,
    "month": "2026-11",
    "uploaded_bytes": 7,
    "downloaded_bytes": 9,
    "upload_quota_bytes": 100,
    "download_quota_bytes": 0,
    "upload_cap_bytes_per_s": 0,
    "download_cap_bytes_per_s": 50,
}


def scrape(events, num_clients=0):
    history = NodeHistory("node")
    for event in events:
        history.take(event)
    raw = render(NodeCollector(history, lambda: num_clients))
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(raw.decode())
        for sample in family.samples
    }


def test_names_and_labels_are_frozen():
    found = scrape(log_events("hostile"))
    assert {key[0]: tuple(label for label, _ in key[1:]) for key in found} == FROZEN


def test_values_are_those_of_the_log():
    reports = [e for e in log_events("peer") if e["event"] == "round"]
    found = scrape(log_events("peer"), num_clients=3)
    assert found["shoal_round",] == 6
    assert found["shoal_rounds_counted_total",] == 6
    assert found["shoal_web_clients",] == 3
    assert found["shoal_tokens_total",] == sum(r["tokens"] for r in reports)
    assert found["shoal_loss", ("kind", "mean")] == pytest.approx(reports[-1]["mean_loss"])
    assert ("shoal_loss", ("kind", "held_out")) not in found
    slowest = max(reports[-1]["gather_latency_s"].values())
    assert found["shoal_gather_latency_seconds", ("statistic", "worst")] == pytest.approx(slowest)


def test_before_the_first_event_there_is_something_to_scrape():
    found = scrape([])
    assert found["shoal_rounds_total",] == 0
    assert ("shoal_last_event_timestamp_seconds",) not in found


def test_labels_are_bounded_whatever_peers_send():
    events = [started()]
    for number in range(500):
        events.append({"event": "payload-rejected", "peer": f"p{number}", "code": f"E_{number}"})
        events.append(report(number + 1, gather_latency_s={f"stranger-{number}": 0.1}))
    found = scrape(events)
    peers = {dict(key[1:])["peer"] for key in found if key[0].startswith("shoal_peer_")}
    assert peers == {f"stranger-{n}" for n in range(500 - MAX_LABELLED_PEERS, 500)}
    codes = {dict(key[1:])["code"] for key in found if key[0] == "shoal_payloads_rejected_total"}
    assert codes == {OTHER_CODE}
    assert codes | {c.value for c in ErrorCode}


def test_a_refused_peer_is_never_a_label():
    assert not [key for key in scrape(log_events("hostile")) if "onerror" in repr(key)]


def test_bandwidth_has_frozen_names_and_no_limit_is_absent():
    found = scrape([BANDWIDTH])
    new = {key: value for key, value in found.items() if key[0] in WITH_BANDWIDTH}
    assert new == {
        ("shoal_month_bytes", ("direction", "up")): 7,
        ("shoal_month_bytes", ("direction", "down")): 9,
        ("shoal_month_quota_bytes", ("direction", "up")): 100,
        ("shoal_cap_bytes_per_second", ("direction", "down")): 50,
    }
    assert {key[0] for key in scrape([])}.isdisjoint(WITH_BANDWIDTH)
