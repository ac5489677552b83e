import io
import json
import math
from dataclasses import asdict

import pytest
from rich.console import Console

from shoal.node.swarm_events import NodeView
from shoal.node.swarm_report import draw, number, summarize, values, write_report
from shoal.node.swarm_setup import SwarmFolder
from tests.support.manifests import tiny_manifest
from tests.unit.node.test_telemetry import report as full_report

MANIFEST = tiny_manifest()
ROOT = "ab" * 32


def report(round_id, **changes):
    return asdict(full_report(round_id=round_id, **changes))


def node(tmp_path, name, reports=(), *, role="peer", root=ROOT):
    return NodeView(
        name=name,
        log=tmp_path / "no.jsonl",
        role=role,
        peer="12D3KooW" + name,
        parameters_root=root,
        reports={r["round_id"]: r for r in reports},
    )


def learned(round_id, **changes):
    fields = {
        "mean_loss": 5.0 - round_id,
        "gather_latency_s": {"a": 0.1 * round_id, "b": 0.3},
        "relative_squared_error": 0.1 * round_id,
        "mean_ratio": 0.9,
        **changes,
    }
    return report(round_id, **fields)


@pytest.fixture
def folder(tmp_path):
    store = tmp_path / "store" / "run" / "peers" / "k" / "payloads"
    store.mkdir(parents=True)
    for i in range(3):
        (store / f"{i:08d}").write_bytes(bytes(MANIFEST.payload_bytes))
    return SwarmFolder(root=tmp_path, manifest=MANIFEST, validators=(), peers=())


def written(folder, nodes):
    out = io.StringIO()
    identical = write_report(Console(file=out, width=200), folder, nodes)
    return identical, out.getvalue(), json.loads((folder.root / "summary.json").read_text())


def test_a_peers_figures_are_over_all_its_rounds(tmp_path):
    rounds = [learned(1), learned(2, counted=False), learned(3)]
    found = summarize(node(tmp_path, "p", rounds))
    assert (found.num_rounds, found.num_counted) == (3, 2)
    assert (found.first_loss, found.last_loss) == (4.0, 2.0)
    assert found.gather_median_s == pytest.approx(0.3)
    assert found.gather_worst_s == pytest.approx(0.3)
    assert found.upload_bytes_per_s == pytest.approx(30 / 3.0)
    assert found.download_bytes_per_s == pytest.approx(60 / 0.75)
    assert found.communication_ratio == pytest.approx(0.05)
    assert found.relative_squared_error == pytest.approx(0.2)


def test_what_was_not_measured_is_no_number(tmp_path):
    found = summarize(node(tmp_path, "p", [report(1, upload_s=0.0, round_s=0.0, downloads={})]))
    assert math.isnan(found.first_loss)
    assert math.isnan(found.mean_ratio)
    assert (found.upload_bytes_per_s, found.communication_ratio) == (0.0, 0.0)
    assert number({"a": None}, "a") is None
    assert number({"a": "x"}, "b") is None
    assert values({"a": {"x": 1, "y": None}}, "a") == [1.0]
    assert values({"a": 3}, "a") == []


def test_identical_parameters_are_said_and_all_is_written(folder, tmp_path):
    rounds = [learned(1), learned(2)]
    nodes = [
        node(tmp_path, "validator-0", [report(1, held_out_loss=4.5)], role="validator"),
        node(tmp_path, "peer-0", rounds),
        node(tmp_path, "peer-1", rounds),
    ]
    identical, text, summary = written(folder, nodes)
    assert identical
    assert f"parameters identical on all 3 nodes: {ROOT}" in text
    assert f"all of exactly {MANIFEST.payload_bytes} bytes" in text
    assert summary["parameters_roots"] == [ROOT]
    assert summary["num_payloads"] == 3
    assert [p["name"] for p in summary["peers"]] == ["peer-0", "peer-1"]
    assert (folder.root / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("other", ["cd" * 32, ""], ids=["another root", "no clean end"])
def test_nodes_that_differ_or_did_not_end_are_not_identical(folder, tmp_path, other):
    nodes = [node(tmp_path, "peer-0", [learned(1)]), node(tmp_path, "peer-1", root=other)]
    identical, text, _ = written(folder, nodes)
    assert not identical
    assert "identical on all" not in text
    last = [line for line in text.splitlines() if line.startswith("peer-")]
    assert [line.split(":")[0] for line in last] == ["peer-0", "peer-1"]
    assert last[0].endswith(f"parameters {ROOT}")


def test_a_payload_of_another_length_is_told(folder, tmp_path):
    (tmp_path / "store" / "run" / "peers" / "k" / "payloads" / "x").write_bytes(b"short")
    _, text, _ = written(folder, [node(tmp_path, "peer-0", [learned(1)])])
    assert "NOT all of exactly" in text


def test_the_summary_is_json_though_a_peer_only_replayed(folder, tmp_path):
    def no_constant(name):
        raise AssertionError(f"{name} is no JSON")

    written(folder, [node(tmp_path, "peer-0", [report(1)])])
    raw = (folder.root / "summary.json").read_text()
    assert json.loads(raw, parse_constant=no_constant)["peers"][0]["first_loss"] is None


def test_nodes_without_any_report_make_a_report_too(folder, tmp_path):
    identical, _, summary = written(folder, [node(tmp_path, "peer-0", root="")])
    assert not identical
    assert summary["peers"] == []
    assert not (folder.root / "report.png").exists()


def test_a_loss_of_zero_is_a_point_of_the_curve(tmp_path):
    from shoal.node import swarm_report  # noqa: PLC0415  # one private function

    rounds = [learned(1, mean_loss=0.0), learned(2, mean_loss=None), learned(3)]
    assert swarm_report._series(node(tmp_path, "p", rounds), "mean_loss") == ([1, 3], [0.0, 2.0])


def test_the_picture_is_written_whole(tmp_path):
    draw(tmp_path / "report.png", [node(tmp_path, "p", [learned(1)])], 100)
    assert [p.name for p in tmp_path.iterdir()] == ["report.png"]
