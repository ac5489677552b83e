import math
import threading

import numpy as np
import pytest

from shoal.compression import check_body, dequantize
from shoal.node.checkpoint import CheckpointFolder
from shoal.node.errors import HaltError, ResourceError
from shoal.node.inner_loop import Learned
from shoal.node.local_state import from_snapshot
from shoal.node.model import parameters_of
from shoal.node.pseudo_gradient import pseudo_gradient
from shoal.node.staging import check_own, stage_payload
from shoal.protocol.payload_header import PAYLOAD_PREFIX_BYTES
from tests.support.contexts import context_of, payload_for
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import peer
from tests.support.nodes import bigram_data, bigram_manifest, fresh_state

MANIFEST = bigram_manifest()


@pytest.fixture
def run(tmp_path, no_fsync):
    context = context_of(MANIFEST, peer(1), FaultyStore(), FakeClock(), tmp_path / "log.jsonl")
    yield context
    context.log.close()


def trained(run, state):
    state.trainer.load_base(state.base)
    result = state.trainer.run(
        1,
        bigram_data(MANIFEST).batches(bytes(32), run.me.key),
        out_of_time=lambda: False,
        interrupt=threading.Event(),
        on_step=lambda step, loss: None,
    )
    return Learned(result=result, start=state.base)


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


def test_what_is_staged_is_on_the_disk_with_all_that_settles_it(run, folder):
    state = fresh_state(run, trains=True)
    staged = stage_payload(run, state, folder, trained(run, state))
    found = fresh_state(run, trains=True)
    from_snapshot(folder.load(), found, MANIFEST)
    assert found.staged_raw == state.staged_raw == staged.raw
    assert staged.payload is not None
    assert found.feedback is not None
    assert state.feedback is not None
    assert found.feedback.staged_body == staged.raw[PAYLOAD_PREFIX_BYTES:]
    for one, other in zip(found.feedback.residuals, state.feedback.residuals, strict=True):
        assert one.tobytes() == other.tobytes()
    again = check_own(run, found, staged.raw)
    assert again is not None
    assert again.payload_id == staged.payload.payload_id


def test_the_payload_is_the_signed_top_of_the_pseudo_gradient(run, folder):
    state = fresh_state(run, trains=True)
    learned = trained(run, state)
    gradient = pseudo_gradient(state.base, parameters_of(state.trainer.model))
    staged = stage_payload(run, state, folder, learned)
    assert staged.payload is not None
    header = staged.payload.header
    assert (header.round_id, header.inner_steps, header.tokens) == (1, 3, learned.result.tokens)
    assert header.base_state == state.head.state
    decoded = dequantize(check_body(staged.raw[PAYLOAD_PREFIX_BYTES:], run.layout))
    for wanted, (positions, values) in zip(gradient, decoded, strict=True):
        assert np.array_equal(np.sign(values), np.sign(wanted[positions]))
    expected = math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in gradient))
    assert staged.pseudo_gradient_norm == pytest.approx(expected, rel=1e-5)


def test_an_update_of_nothing_is_staged_and_not_sent(run, folder):
    state = fresh_state(run, trains=True)
    learned = trained(run, state)
    state.trainer.load_base(state.base)
    staged = stage_payload(run, state, folder, learned)
    assert staged.payload is None
    assert check_own(run, state, staged.raw) is None


def test_an_update_that_is_not_finite_halts_and_nothing_is_staged(run, folder):
    state = fresh_state(run, trains=True)
    learned = trained(run, state)
    next(iter(state.trainer.model.parameters())).data[0] = math.nan
    with pytest.raises(HaltError, match="cannot be encoded"):
        stage_payload(run, state, folder, learned)
    assert state.staged_raw is None
    assert folder.load() is None


def test_a_payload_that_others_would_refuse_halts_before_it_leaves(run):
    state = fresh_state(run, trains=True)
    raw = payload_for(MANIFEST, state.head, peer(1), bytes([255]) * MANIFEST.limits.body_bytes)
    with pytest.raises(HaltError, match="would be refused"):
        check_own(run, state, raw)


def test_a_full_disk_is_told_and_nothing_is_staged_on_it(run, folder, monkeypatch):
    state = fresh_state(run, trains=True)
    learned = trained(run, state)
    folder.folder.parent.mkdir(exist_ok=True)
    folder.folder.write_bytes(b"a file in the folder's place")
    with pytest.raises(ResourceError):
        stage_payload(run, state, folder, learned)


def test_a_node_that_does_not_train_cannot_stage(run, folder):
    state = fresh_state(run, trains=False)
    with pytest.raises(HaltError, match="does not train"):
        stage_payload(run, state, folder, trained(run, state))
