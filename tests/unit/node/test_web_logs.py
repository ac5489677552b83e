import json

import pytest

from shoal.node.errors import ConfigError
from shoal.node.web.log_folder import LogFolder, find_logs
from shoal.node.web.log_tail import LogTail
from tests.support.web_events import report, started


def line(event):
    return json.dumps(event).encode() + b"\n"


def test_a_log_is_read_as_it_grows(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = LogTail(path)
    assert tail.read_new() == []
    path.write_bytes(line({"event": "a"}) + b'{"event": "b')
    assert tail.read_new() == [{"event": "a"}]
    assert tail.read_new() == []
    with path.open("ab") as file:
        file.write(b'"}\n')
    assert tail.read_new() == [{"event": "b"}]
    assert (tail.num_bad_lines, tail.trouble) == (0, "")


@pytest.mark.parametrize(
    "bad", [b"{half", b"\xff\xfe\x00", b"[1]", b"7", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_a_line_that_is_no_event_is_skipped_and_counted(tmp_path, bad):
    path = tmp_path / "events.jsonl"
    path.write_bytes(line({"event": "a"}) + bad + b"\n" + line({"event": "b"}))
    tail = LogTail(path)
    assert [event["event"] for event in tail.read_new()] == ["a", "b"]
    assert tail.num_bad_lines == 1


def test_of_a_long_log_the_end_is_read(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line({"event": f"{i:04}"}) for i in range(1000)))
    found = LogTail(path, max_read_bytes=90).read_new()
    assert [event["event"] for event in found] == ["0996", "0997", "0998", "0999"]


def test_a_log_that_was_replaced_is_read_again(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(line({"event": "a"}) * 3)
    tail = LogTail(path)
    assert len(tail.read_new()) == 3
    path.write_bytes(line({"event": "b"}))
    assert tail.read_new() == [{"event": "b"}]


def test_a_log_that_cannot_be_read_gives_a_reason(tmp_path):
    (tmp_path / "events.jsonl").mkdir()
    tail = LogTail(tmp_path / "events.jsonl")
    assert tail.read_new() == []
    assert tail.trouble == "Is a directory"


def put(path, *events):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line(event) for event in events))


def test_logs_are_found_in_every_kind_of_folder(tmp_path):
    log = tmp_path / "nodes" / "peer-0" / "state" / "events.jsonl"
    put(log, started())
    for path in (tmp_path, log.parents[1], log.parent, log):
        assert find_logs(path) == [log]
        (history,) = LogFolder(path).read().histories
        assert history.name == "peer-0"


def test_a_node_that_appears_later_is_found(tmp_path):
    put(tmp_path / "nodes" / "a" / "state" / "events.jsonl", started(), report(1))
    folder = LogFolder(tmp_path)
    assert [history.name for history in folder.read().histories] == ["a"]
    put(tmp_path / "nodes" / "b" / "state" / "events.jsonl", started(), report(1))
    status = folder.read()
    assert [history.name for history in status.histories] == ["a", "b"]
    agreement = status.agreement
    assert agreement is not None
    assert (agreement.equal, agreement.of) == (2, 2)


def test_what_cannot_be_read_is_said(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "nodes" / "a" / "state" / "events.jsonl").mkdir(parents=True)
    put(tmp_path / "nodes" / "b" / "state" / "events.jsonl", started())
    with (tmp_path / "nodes" / "b" / "state" / "events.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    troubles = LogFolder(tmp_path).read().troubles
    assert len(troubles) == 3
    assert "manifest.json" in troubles[0]
    assert troubles[1].endswith("Is a directory")
    assert troubles[2].endswith("1 lines are no events")


def test_a_folder_that_is_not_there_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        LogFolder(tmp_path / "nowhere").read()
