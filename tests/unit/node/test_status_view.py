import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shoal.node.app import app
from shoal.node.status_view import _watch, draw, show_status
from shoal.node.web.log_folder import LogFolder
from tests.support.web_events import LOGS, log_events, report, started


def put(path, events, tail=b""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(e).encode() + b"\n" for e in events) + tail)


@pytest.fixture
def swarm(tmp_path):
    for name in ("peer", "validator"):
        put(tmp_path / "nodes" / f"{name}-0" / "state" / "events.jsonl", log_events(name))
    return tmp_path


def screen(path, width=80, height=30, now_s=1796051800.0):
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, color_system=None)
    console.print(draw(LogFolder(path).read(), console, now_s))
    return file.getvalue()


def test_a_swarm_on_80_columns(swarm):
    text = screen(swarm)
    assert "equal on 2 of 2 nodes after round 6" in text
    assert max(map(len, text.splitlines())) <= 80
    row = next(line.split() for line in text.splitlines() if line.startswith("peer-0"))
    assert row[:6] == ["peer-0", "6", "finished", "1", "min", "5.659"]
    assert "6/6" in row
    assert "1.99/4.66 ms" in text
    assert "\u2026" not in text


def test_40_columns_show_fewer_facts_and_those_whole(swarm):
    text = screen(swarm, width=40)
    assert max(map(len, text.splitlines())) <= 40
    # Nothing of the table was cut.
    heads = next(line for line in text.splitlines() if line.startswith("node"))
    assert heads.split() == ["node", "round", "phase", "loss"]
    assert "…" not in text


def test_a_wide_terminal_shows_bandwidth_too(swarm):
    text = screen(swarm, width=140)
    assert "MB/s" in text
    assert "refused" in text


def test_one_node_has_curves(swarm):
    text = screen(swarm / "nodes" / "peer-0")
    assert "training loss  \u2588" in text
    assert "after round 6" in text


def test_a_terminal_without_the_characters_has_no_curves(swarm):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=80, color_system=None)
    status = LogFolder(swarm / "nodes" / "peer-0").read()
    console.print(draw(status, console, 0.0))


def test_nodes_that_disagree_are_shown_so(tmp_path):
    for name, state in (("a", "aa" * 32), ("b", "aa" * 32), ("c", "bb" * 32)):
        log = tmp_path / "nodes" / name / "state" / "events.jsonl"
        put(log, [started(), report(1, state_hash=state)])
    assert "equal on 2 of 3 nodes after round 1" in screen(tmp_path)


def test_refusals_and_hostile_names_are_text(tmp_path):
    events = [
        *log_events("hostile"),
        {"event": "payload-rejected", "time_s": 2e9, "round_id": 5, "peer": "\x1b[2J[bold]x[/]",
         "code": "E_SIG", "detail": "[red]not markup[/red] \x1b[31m"},
    ]  # fmt: skip
    put(tmp_path / "events.jsonl", events)
    text = screen(tmp_path)
    assert "refused payloads: E_LEN x2, E_SIG x2" in text
    assert "[red]not markup[/red] ?[31m" in text
    assert "\x1b" not in text


def test_an_empty_folder(tmp_path):
    text = screen(tmp_path)
    assert "no rounds yet" in text
    assert "no event log under" in text


def test_half_lines_and_unreadable_files_are_said_and_do_no_harm(swarm):
    put(swarm / "nodes" / "half" / "state" / "events.jsonl", [started()], b'{"event": "rou')
    put(swarm / "nodes" / "junk" / "state" / "events.jsonl", [started()], b"\xff\xfe\n")
    (swarm / "nodes" / "odd" / "state" / "events.jsonl").mkdir(parents=True)
    text = " ".join(screen(swarm, width=200).split())
    assert "odd/state/events.jsonl: Is a directory" in text
    assert "junk/state/events.jsonl: 1 lines are no events" in text
    assert "half/state" not in text
    assert "equal on 2 of 2" in text


def test_many_nodes_fit_on_one_screen(tmp_path):
    for number in range(60):
        put(tmp_path / "nodes" / f"peer-{number:02}" / "state" / "events.jsonl", [started()])
    text = screen(tmp_path, height=24)
    assert len(text.splitlines()) <= 24
    assert "and 50 more nodes" in text


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_watching_redraws_until_it_is_interrupted(tmp_path, monkeypatch, terminal):
    monkeypatch.setenv("TERM", terminal)
    log = tmp_path / "events.jsonl"
    rounds = [[started()], [started(), report(1)]]

    def wait():
        if not rounds:
            raise KeyboardInterrupt
        put(log, rounds.pop(0))

    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True)
    _watch(LogFolder(tmp_path), console, wait)
    text = file.getvalue()
    assert text.index("no event log under") < text.index("round 1 applied")


def test_json_is_the_pages_state_and_the_troubles(swarm):
    file = io.StringIO()
    show_status(swarm, Console(file=file, width=40), watch=False, as_json=True)
    state = json.loads(file.getvalue())
    assert [node["name"] for node in state["nodes"]] == ["peer-0", "validator-0"]
    assert state["agreement"]["equal"] == 2
    assert state["troubles"] == []


def test_the_command():
    result = CliRunner().invoke(app, ["status", str(LOGS / "peer.jsonl")])
    assert result.exit_code == 0
    assert "round 6 applied" in result.output


def test_one_nodes_screen_shows_caps_and_the_months_use(tmp_path):
    use = {
        "event": "bandwidth",
        "month": "2026-11",
        "uploaded_bytes": 41_000_000_000,
        "downloaded_bytes": 1_234_567,
        "upload_quota_bytes": 50_000_000_000,
        "download_quota_bytes": 0,
        "upload_cap_bytes_per_s": 2_500_000,
        "download_cap_bytes_per_s": 0,
    }
    put(tmp_path / "events.jsonl", [*log_events("peer"), use])
    text = " ".join(screen(tmp_path, width=160).split())
    assert "2026-11: 41 GB up of 50 GB (82%), at most 2.5 MB/s; 1.23 MB down" in text
    put(tmp_path / "events.jsonl", [{"event": "bandwidth", "month": 7, "uploaded_bytes": "x"}])
    assert "0 B up; 0 B down" in screen(tmp_path)
