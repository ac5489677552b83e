import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.node.checkpoint import CheckpointFolder
from shoal.node.errors import CheckpointError
from shoal.node.inner_loop import Learned
from shoal.node.local_state import from_snapshot, to_snapshot
from shoal.node.staging import stage_payload
from tests.support.contexts import context_of
from tests.support.fake_clock import FakeClock
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import peer, tiny_manifest
from tests.support.nodes import bigram_data, bigram_manifest, fresh_state

MANIFEST = bigram_manifest()


@pytest.fixture
def run(tmp_path, no_fsync):
    context = context_of(MANIFEST, peer(1), FaultyStore(), FakeClock(), tmp_path / "log.jsonl")
    yield context
    context.log.close()


def train(run, state, round_id=1):
    state.trainer.load_base(state.base)
    return state.trainer.run(
        round_id,
        bigram_data(MANIFEST).batches(bytes([round_id]) * 32, run.me.key),
        out_of_time=lambda: False,
        interrupt=threading.Event(),
        on_step=lambda step, loss: None,
    )


def loaded(folder):
    snapshot = folder.load()
    assert snapshot is not None
    return snapshot


def saved_and_loaded(run, state, tmp_path, *, trains=True):
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.save(to_snapshot(state, MANIFEST))
    found = fresh_state(run, trains=trains)
    from_snapshot(loaded(folder), found, MANIFEST)
    return found


def assert_equal(one, other):
    assert one.head == other.head
    assert one.staged_raw == other.staged_raw
    assert [b.tobytes() for b in one.base] == [b.tobytes() for b in other.base]
    mine, theirs = one.trainer.state_arrays(), other.trainer.state_arrays()
    assert set(mine) == set(theirs)
    for name, value in mine.items():
        assert value.tobytes() == theirs[name].tobytes()
    assert (one.feedback is None) == (other.feedback is None)
    if one.feedback is not None:
        assert one.feedback.staged_body == other.feedback.staged_body
        for a, b in zip(one.feedback.residuals, other.feedback.residuals, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("staged", [False, True])
def test_a_snapshot_goes_round_to_the_bit(run, tmp_path, staged):
    state = fresh_state(run, trains=True)
    result = train(run, state)
    if staged:
        learned = Learned(result=result, start=state.base)
        stage_payload(run, state, CheckpointFolder(tmp_path / "elsewhere"), learned)
        assert state.staged_raw is not None
    state.base[0][:2] = [-0.0, 1e-45]
    torch.manual_seed(77)
    found = saved_and_loaded(run, state, tmp_path)
    assert_equal(found, state)
    assert len(found.trainer.state_arrays()) == 9


def test_the_random_state_is_restored(run, tmp_path):
    state = fresh_state(run, trains=True)
    torch.manual_seed(77)
    torch.rand(3)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.save(to_snapshot(state, MANIFEST))
    expected = torch.rand(5)
    torch.manual_seed(1)
    from_snapshot(loaded(folder), fresh_state(run, trains=True), MANIFEST)
    assert torch.equal(torch.rand(5), expected)


def test_a_restored_node_trains_on_to_the_same_bits(run, tmp_path):
    state = fresh_state(run, trains=True)
    train(run, state)
    found = saved_and_loaded(run, state, tmp_path)
    results = [train(run, one, round_id=2) for one in (state, found)]
    assert results[0] == results[1]
    parameters = [
        [p.detach().numpy().tobytes() for p in one.trainer.model.parameters()]
        for one in (state, found)
    ]
    assert parameters[0] == parameters[1]


def test_a_staged_residual_is_settled_alike_before_and_after_a_restart(run, tmp_path):
    state = fresh_state(run, trains=True)
    learned = Learned(result=train(run, state), start=state.base)
    stage_payload(run, state, CheckpointFolder(tmp_path / "elsewhere"), learned)
    found = saved_and_loaded(run, state, tmp_path)
    for one in (state, found):
        assert one.feedback is not None
        one.feedback.commit()
    assert_equal(found, state)


def test_a_node_that_does_not_train_keeps_parameters_only(run, tmp_path):
    state = fresh_state(run, trains=False)
    assert not state.trains
    snapshot = to_snapshot(state, MANIFEST)
    assert set(snapshot.arrays) == {"base.0", "base.1", "base.2"}
    assert_equal(saved_and_loaded(run, state, tmp_path, trains=False), state)


@pytest.mark.parametrize(
    "other",
    [
        tiny_manifest(),
        bigram_manifest(version=2, first=bytes([9]) * 32),
        bigram_manifest(version=2, first=MANIFEST.run_id),
    ],
    ids=["another model", "another run", "another manifest of the run"],
)
def test_a_snapshot_of_another_run_or_manifest_is_refused(run, other):
    state = fresh_state(run, trains=True)
    with pytest.raises(CheckpointError, match="belongs to something else"):
        from_snapshot(to_snapshot(state, MANIFEST), state, other)


def test_a_snapshot_of_another_format_is_refused(run):
    state = fresh_state(run, trains=True)
    snapshot = to_snapshot(state, MANIFEST)
    strange = replace(snapshot, facts={**snapshot.facts, "format": "shoal/node-state/2"})
    with pytest.raises(CheckpointError, match="format"):
        from_snapshot(strange, state, MANIFEST)


@pytest.mark.parametrize(
    "name", ["base.1", "residual.2", "rng", "adamw.0.exp_avg", "record_id", "state"]
)
def test_a_snapshot_that_lacks_something_is_refused(run, name):
    state = fresh_state(run, trains=True)
    train(run, state)
    snapshot = to_snapshot(state, MANIFEST)
    arrays = {k: v for k, v in snapshot.arrays.items() if k != name}
    facts = {k: v for k, v in snapshot.facts.items() if k != name}
    broken = replace(snapshot, arrays=arrays, facts=facts)
    with pytest.raises(CheckpointError, match=f"lacks.*{name}"):
        from_snapshot(broken, fresh_state(run, trains=True), MANIFEST)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base.0", np.zeros(3, np.float32)),
        ("base.0", np.zeros(1, np.float32)),
        ("residual.0", np.zeros(3, np.float32)),
        ("residual.0", np.full(128, np.nan, np.float32)),
        ("staged", np.zeros(300, np.uint8)),
        ("rng", np.zeros(3, np.uint8)),
    ],
    ids=["base", "base of one", "residual", "residual not finite", "staged", "rng"],
)
def test_a_snapshot_that_does_not_fit_the_model_is_refused(run, name, value):
    state = fresh_state(run, trains=True)
    snapshot = to_snapshot(state, MANIFEST)
    broken = replace(snapshot, arrays={**snapshot.arrays, name: value})
    with pytest.raises(CheckpointError):
        from_snapshot(broken, fresh_state(run, trains=True), MANIFEST)
