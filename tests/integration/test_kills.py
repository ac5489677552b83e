"""kill -9 at many moments, absence, and late joiners: everybody ends with the same parameters."""

import json
import random
import shutil
import signal
import time
from itertools import count
from pathlib import Path

import pytest

from tests.support.processes import (
    Forge,
    Node,
    all_ended,
    is_event,
    is_round,
    state_of,
    wait_until,
)
from tests.support.tiny_run import TinyRun, make_tiny_run, replay

# Starts of many nodes, on a machine with other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_KILLS = 28
# What a node has just done when it is killed, and by that what it is about to do.
PEER_MOMENTS = (
    "node-started",
    "round-opened",
    "inner-step",
    "payload-staged",
    "payload-published",
    "payload-accepted",
    "round",
)
VALIDATOR_MOMENTS = ("node-started", "round-opened", "payload-accepted", "record-written", "round")
LONGEST_DELAY_S = 0.15


def assert_all_equal(run: TinyRun, nodes: list[Node]) -> None:
    for node in nodes:
        assert node.wait() == 0, node.output()
    replayed = replay(run)
    for node in nodes:
        last = node.events("node-stopped")[-1]
        assert last["finished"] is True
        assert last["round_id"] == run.manifest.run.num_rounds
        assert last["state_hash"] == replayed.head.state.hex(), node.name
        assert last["parameters_root"] == replayed.parameters_root, node.name
        rounds = [event["round_id"] for event in node.events("round")]
        assert sorted(set(rounds)) == rounds, f"{node.name} applied a round twice"
        assert "Traceback" not in node.output()


def first_without_record(run: TinyRun) -> int:
    """The open round, while the validator does nothing."""
    keys = (run.object_file(run.keys.record(number)) for number in count(1))
    return next(number for number, path in enumerate(keys, 1) if not path.exists())


def nodes_of(forge: Forge, run: TinyRun, *names: str) -> list[Node]:
    verbs = {name: "validate" if name == "validator" else "join" for name in names}
    return [Node(forge, run.add_node(n), run.manifest_file, verbs[n]) for n in names]


def test_nodes_killed_at_any_moment_resume_and_end_with_the_parameters_of_the_records(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=3, num_rounds=60, min_peers=2, target_peers=2)
    nodes = nodes_of(forge, run, "validator", "peer-0", "peer-1", "peer-2")
    draw = random.Random(20)  # noqa: S311  # moments, not secrets
    num_killed = 0
    with all_ended(*nodes):
        for node in nodes:
            node.start()
        for number in range(NUM_KILLS):
            victim = nodes[number % len(nodes)]
            moments = VALIDATOR_MOMENTS if victim is nodes[0] else PEER_MOMENTS
            moment = moments[number // len(nodes) % len(moments)]
            delay_s = draw.uniform(0.0, LONGEST_DELAY_S)
            if moment != "node-started":
                num_seen = len(victim.events())
                victim.wait_for(is_event(moment), skip=num_seen)
            # Not to wait for something: the delay is the moment that was drawn.
            time.sleep(delay_s)
            num_killed += victim.kill()
            victim.start()
        assert num_killed == NUM_KILLS
        assert_all_equal(run, nodes)


def test_a_peer_that_was_away_and_a_newcomer_replay_the_records(
    forge: Forge, tmp_path: Path
) -> None:
    # Enough rounds that a test that is not scheduled for a while still meets a run that goes on.
    run = make_tiny_run(tmp_path, num_peers=3, num_rounds=30, inner_steps=4)
    nodes = nodes_of(forge, run, "validator", "peer-0", "peer-1", "peer-2")
    validator, steady, away, newcomer = nodes
    with all_ended(*nodes):
        for node in (validator, steady, away):
            node.start()
        away.wait_for(is_round(2))
        assert away.kill()
        left_after = away.events("round")[-1]["round_id"]
        steady.wait_for(is_round(left_after + 4))
        num_seen = len(away.events())
        away.start()
        newcomer.start()
        assert_all_equal(run, nodes)
        replays = [e for e in away.events()[num_seen:] if e["event"] == "round" and e["replayed"]]
        assert len(replays) >= 3
        first = newcomer.events("round")[0]
        assert (first["round_id"], first["replayed"]) == (1, True)


def test_a_peer_killed_between_upload_and_announcement_announces_the_same_bytes(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=1, num_rounds=30, target_peers=1)
    nodes = nodes_of(forge, run, "validator", "peer-0")
    validator, peer = nodes
    me = run.identities["peer-0"].peer
    num_cut = 0
    with all_ended(*nodes):
        for node in nodes:
            node.start()
        for round_id in (2, 4):
            peer.wait_for(is_round(round_id))
            # While the validator sleeps, the round stays open.
            validator.send(signal.SIGSTOP)
            wait_until(lambda: state_of(validator.pid) == "T", "the validator sleeps")
            # Not what the peer says: it may not have seen yet that a round has closed.
            open_round = first_without_record(run)
            payload = run.object_file(run.keys.payload(open_round, me))
            announcement = run.object_file(run.keys.published(open_round, me))
            wait_until(announcement.exists, "the payload is announced")
            assert peer.kill()
            uploaded = payload.read_bytes()
            # What a kill between the two writes leaves behind.
            announcement.unlink()
            num_cut += 1
            peer.start()
            wait_until(announcement.exists, "the payload is announced after all")
            assert payload.read_bytes() == uploaded
            validator.send(signal.SIGCONT)
        assert_all_equal(run, nodes)
    assert num_cut == 2
    assert not [e for e in peer.events("warning") if "E_KEY_IN_USE" in e["message"]]


def test_damaged_and_lost_local_state_is_made_again_from_the_records(
    forge: Forge, tmp_path: Path
) -> None:
    run = make_tiny_run(tmp_path, num_peers=3, num_rounds=40)
    nodes = nodes_of(forge, run, "validator", "peer-0", "peer-1", "peer-2")
    validator, cut, torn, lost = nodes
    num_damaged = 0
    with all_ended(*nodes):
        for node in nodes:
            node.start()
        for node in (cut, torn, lost, validator):
            node.wait_for(is_round(4))
        for node in (cut, torn, lost, validator):
            assert node.kill()
        for node in (cut, validator):
            checkpoints = node.folder / "state" / "checkpoints"
            newest = json.loads((checkpoints / "CURRENT.json").read_bytes())[0]["file"]
            raw = (checkpoints / newest).read_bytes()
            (checkpoints / newest).write_bytes(raw[: len(raw) // 2])
            num_damaged += 1
        # Half a checkpoint that was never named, and an event without its end.
        (torn.folder / "state" / "checkpoints" / "state-9.safetensors.tmp").write_bytes(b"half")
        with (torn.folder / "state" / "events.jsonl").open("ab") as log:
            log.write(b'{"event": "inner-step", "time_')
        shutil.rmtree(lost.folder / "state" / "checkpoints")
        shutil.rmtree(lost.folder / "state" / "blobs")
        (lost.folder / "state" / "events.jsonl").unlink()
        num_damaged += 2
        lines = (torn.folder / "state" / "events.jsonl").read_bytes().split(b"\n")
        for node in nodes:
            node.start()
        codes = [node.wait() for node in nodes]
        assert codes == [0, 0, 0, 0], [node.output() for node in nodes]
        whole = (torn.folder / "state" / "events.jsonl").read_bytes().split(b"\n")
        assert whole[len(lines) - 1] == lines[-1]
        # The month's use is said first.
        begun = [json.loads(line)["event"] for line in whole[len(lines) : len(lines) + 2]]
        assert begun == ["bandwidth", "node-started"]
        # For the comparison: a log without the torn line.
        del whole[len(lines) - 1]
        (torn.folder / "state" / "events.jsonl").write_bytes(b"\n".join(whole))
        for node in nodes:
            assert node.events("node-stopped")[-1]["parameters_root"] == replay(run).parameters_root
    assert num_damaged == 4
