import json

from shoal.node.web.board import Board, agree
from shoal.node.web.history import NodeHistory, RunFacts
from tests.support.web_events import log_events, report, started


def board_of(**events_by_name):
    board = Board([NodeHistory(name) for name in events_by_name], lambda: 7.0)
    for name, events in events_by_name.items():
        for event in events:
            board.take(name, event)
    return board


def test_a_snapshot_and_changes_are_the_next_snapshot():
    events = log_events("peer")
    board = board_of(node=events[:60])
    seen = json.loads(board.snapshot())["nodes"][0]
    for start in range(60, len(events), 7):
        for event in events[start : start + 7]:
            board.take("node", event)
        change = json.loads(board.changes())["nodes"][0]
        seen = {**change, "rounds": seen["rounds"] + change["rounds"]}
    assert seen == json.loads(board.snapshot())["nodes"][0]


def test_a_long_run_has_a_bounded_snapshot():
    history = NodeHistory("node", RunFacts(name="x" * 200))
    board = Board([history], lambda: 7.0)
    for round_id in range(1, 3001):
        board.take("node", report(round_id, state_hash="f" * 64))
    assert len(board.snapshot()) < 400_000
    assert len(board.changes()) < 10_000


def test_one_node_agrees_with_itself():
    found = agree(list(board_of(a=log_events("peer")).histories.values()))
    assert found is not None
    assert (found.equal, found.of, found.round_id) == (1, 1, 6)


def test_real_logs_of_two_nodes_agree():
    board = board_of(a=log_events("peer"), b=log_events("validator"))
    agreement = json.loads(board.snapshot())["agreement"]
    assert (agreement["equal"], agreement["of"], agreement["round_id"]) == (2, 2, 6)


def test_nodes_are_compared_where_all_of_them_are():
    board = board_of(
        a=[started(), report(1), report(2), report(3)], b=[started(), report(1), report(2)]
    )
    found = agree(list(board.histories.values()))
    assert found is not None
    assert (found.round_id, found.equal, found.of) == (2, 2, 2)


def test_a_node_that_differs_is_seen():
    bad = report(1, state_hash="dead" * 16)
    board = board_of(a=[report(1)], b=[report(1)], c=[bad])
    found = agree(list(board.histories.values()))
    assert found is not None
    assert (found.equal, found.of, found.state_hash) == (2, 3, f"{1:064x}")


def test_before_any_round_there_is_nothing_to_compare():
    assert agree([NodeHistory("a")]) is None
    assert json.loads(board_of(a=[]).snapshot())["agreement"] is None
