"""The live screen of a swarm."""

import io

from rich.console import Console

from shoal.node.swarm_events import NodeView
from shoal.node.swarm_view import SwarmView
from tests.support.manifests import tiny_manifest


def _report(round_id, role):
    return {
        "round_id": round_id,
        "role": role,
        "num_counted": 2,
        "counted": role == "peer",
        "held_out_loss": 4.25 if role == "validator" else None,
        "state_hash": "ab" * 32,
    }


def _nodes(tmp_path):
    nodes = [NodeView(name=name, log=tmp_path / name) for name in ("validator-0", "peer-0")]
    for node, role in zip(nodes, ("validator", "peer"), strict=True):
        node.role, node.round_id = role, 2
        node.reports = {1: _report(1, role)}
    nodes[1].loss, nodes[1].step, nodes[1].rejected = 5.5, 2, {"E_LEN": 3}
    return nodes


def test_every_part_of_the_screen_has_its_own_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    file = io.StringIO()
    console = Console(file=file, width=110, force_terminal=True, color_system=None)
    with SwarmView(console, tiny_manifest(), _nodes(tmp_path)):
        pass
    lines = file.getvalue().splitlines()
    head = next(i for i, line in enumerate(lines) if "round 1 of 4" in line)
    assert set(lines[head + 1].strip()) <= set("━╸╺ ")
    assert lines[head + 2].lstrip().startswith("┏")
    text = "\n".join(lines)
    for wanted in ("validator-0", "peer-0", "5.500", "4.250", "1/1", "E_LEN x3"):
        assert wanted in text


def test_elsewhere_than_on_a_terminal_every_round_is_one_line_once(tmp_path):
    file = io.StringIO()
    console = Console(file=file, width=110)
    with SwarmView(console, tiny_manifest(), _nodes(tmp_path)) as view:
        view.update([_report(1, "validator"), _report(1, "peer")])
        view.update([_report(1, "validator")])
        view.update([_report(2, "validator")])
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert "round   1 of 4: 2 payloads counted, held-out loss 4.250, state abababababab" in lines[0]
    assert "round   2 of 4" in lines[1]
