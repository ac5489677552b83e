from dataclasses import replace

import numpy as np
import pytest

from shoal.node.aggregate import aggregate
from shoal.node.applying import apply_record
from shoal.node.checkpoint import CheckpointFolder
from shoal.node.errors import DivergedError, ResourceError
from shoal.node.local_state import from_snapshot, to_snapshot
from shoal.node.outer_step import outer_step
from shoal.node.parameters import parameters_root
from shoal.node.run_context import BodyChecker
from shoal.protocol.chain import next_state
from shoal.protocol.payload import PayloadContext, validate
from shoal.protocol.record_body import CountedPayload
from shoal.protocol.round_machine import Settlement
from tests.support.bodies import body_like
from tests.support.contexts import context_of, payload_for
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import peer, verified_after
from tests.support.nodes import bigram_base, bigram_manifest, fresh_state

MANIFEST = bigram_manifest()
PEERS = [peer(i) for i in range(3)]


@pytest.fixture
def run(tmp_path, no_fsync):
    context = context_of(MANIFEST, PEERS[0], FaultyStore(), FakeClock(), tmp_path / "log.jsonl")
    yield context
    context.log.close()


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


@pytest.fixture
def state(run, folder):
    """Before round 1, with the first peer's payload staged, and on the disk."""
    state = fresh_state(run, trains=True)
    gradient = [np.full(size, 0.25, np.float32) for size in MANIFEST.sizes]
    for flat in gradient:
        flat[::3] = -0.5
    assert state.feedback is not None
    body = state.feedback.stage(gradient).body
    state.staged_raw = payload_for(MANIFEST, state.head, PEERS[0], body)
    folder.save(to_snapshot(state, MANIFEST))
    return state


@pytest.fixture
def payloads(run, state):
    context = PayloadContext(
        round_id=1, base_state=state.head.state, seen={}, check_body=BodyChecker(run.layout)
    )
    raws = [state.staged_raw] + [
        payload_for(MANIFEST, state.head, p, body_like(run.layout, i))
        for i, p in enumerate(PEERS[1:])
    ]
    return [validate(raw, MANIFEST.payload_rules(), context) for raw in raws]


def record_of(run, before, payloads, **changes):
    result = aggregate([p.body for p in payloads], run.layout, MANIFEST.outer)
    entries = tuple(
        CountedPayload(peer=p.peer, payload_id=p.payload_id, weight=w)
        for p, w in zip(payloads, result.weights, strict=True)
    )
    base = bigram_base()
    outer_step(base, result.sums, MANIFEST.outer)
    ids = [p.payload_id for p in payloads]
    fields = {
        "state": next_state(MANIFEST.run_id, 1, before.head.state, ids, result.sum_hash),
        "params_root": parameters_root(MANIFEST.tensors, base),
        **changes,
    }
    return verified_after(before.head, MANIFEST, fields.pop("counted", entries), **fields)


def on_disk(run, folder):
    found = fresh_state(run, trains=True)
    from_snapshot(folder.load(), found, MANIFEST)
    return found


def total(state):
    return [r.copy() for r in state.feedback.residuals]


def test_a_counted_round_moves_parameters_head_and_disk(run, state, folder, payloads):
    before = total(state)
    verified = record_of(run, state, payloads)
    norm, result = apply_record(run, state, folder, verified, payloads, Settlement.COMMIT)
    assert norm > 0
    assert result is not None
    assert result.weights == tuple(e.weight for e in verified.record.counted)
    for found in (state, on_disk(run, folder)):
        assert found.head == verified.head
        assert found.staged_raw is None
        assert found.feedback.staged_body is None
        assert parameters_root(MANIFEST.tensors, found.base) == verified.record.params_root
    assert any((a != b).any() for a, b in zip(before, total(state), strict=True))


@pytest.mark.parametrize("settlement", [Settlement.ROLL_BACK, Settlement.NOTHING_STAGED])
def test_a_payload_that_was_not_counted_keeps_its_mass(run, state, folder, payloads, settlement):
    before = total(state)
    others = payloads[1:]
    apply_record(run, state, folder, record_of(run, state, others), others, settlement)
    assert all((a == b).all() for a, b in zip(before, total(state), strict=True))
    assert state.staged_raw is None
    assert state.feedback.staged_body is None


def test_a_void_round_moves_the_head_and_no_parameter(run, state, folder):
    verified = verified_after(state.head, MANIFEST)
    norm, result = apply_record(run, state, folder, verified, [], Settlement.ROLL_BACK)
    assert (norm, result) == (0.0, None)
    for found in (state, on_disk(run, folder)):
        assert found.head == verified.head
        assert [f.tobytes() for f in found.base] == [f.tobytes() for f in bigram_base()]


def assert_nothing_happened(run, state, folder, *, in_memory=True):
    found = on_disk(run, folder)
    for one in (found, state) if in_memory else (found,):
        assert one.head.round_id == 0
        assert one.staged_raw is not None
        assert one.feedback.staged_body is not None
        assert [f.tobytes() for f in one.base] == [f.tobytes() for f in bigram_base()]


def test_another_weight_than_this_nodes_is_refused_before_a_parameter_moves(
    run, state, folder, payloads
):
    good = record_of(run, state, payloads)
    entries = tuple(replace(e, weight=e.weight - 1) for e in good.record.counted)
    verified = record_of(run, state, payloads, counted=entries)
    with pytest.raises(DivergedError, match="clip weights"):
        apply_record(run, state, folder, verified, payloads, Settlement.COMMIT)
    assert_nothing_happened(run, state, folder)


def test_another_state_than_this_nodes_is_refused_before_a_parameter_moves(
    run, state, folder, payloads
):
    verified = record_of(run, state, payloads, state=bytes(32))
    with pytest.raises(DivergedError, match="state hash"):
        apply_record(run, state, folder, verified, payloads, Settlement.COMMIT)
    assert_nothing_happened(run, state, folder)


def test_the_records_order_of_payloads_is_part_of_the_state(run, state, folder, payloads):
    good = record_of(run, state, payloads)
    entries = good.record.counted[::-1]
    verified = record_of(run, state, payloads, counted=entries)
    with pytest.raises(DivergedError, match=r"state hash|clip weights"):
        apply_record(run, state, folder, verified, payloads[::-1], Settlement.COMMIT)


def test_another_root_than_this_nodes_is_refused_before_anything_is_saved(
    run, state, folder, payloads
):
    verified = record_of(run, state, payloads, params_root=bytes(32))
    with pytest.raises(DivergedError, match="root of the parameters"):
        apply_record(run, state, folder, verified, payloads, Settlement.COMMIT)
    assert_nothing_happened(run, state, folder, in_memory=False)


def test_a_disk_that_is_full_leaves_the_state_before_the_round_on_it(
    run, state, folder, payloads, monkeypatch
):
    def full(path, raw):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shoal.node.checkpoint.write_atomically", full)
    verified = record_of(run, state, payloads)
    with pytest.raises(ResourceError):
        apply_record(run, state, folder, verified, payloads, Settlement.COMMIT)
    assert_nothing_happened(run, state, folder, in_memory=False)
