import math
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.data.batches import IGNORED_LABEL, Batch
from shoal.node.errors import HaltError
from shoal.node.trainer import EndReason, Trainer, learning_rate
from shoal.protocol.manifest import TrainingSection
from tests.support.nodes import VOCAB, bigram_base, bigram_model

SECTION = TrainingSection(inner_steps=4, batch_size=2, learning_rate=0.1, warmup_steps=10)


def batch(seed=0, *, labelled=True):
    rng = np.random.default_rng(seed)
    inputs = rng.integers(0, VOCAB, (2, 5))
    labels = rng.integers(0, VOCAB, (2, 5)) if labelled else np.full((2, 5), IGNORED_LABEL)
    return Batch(inputs=inputs, labels=labels)


def run(trainer, batches=batch, *, round_id=1, out_of_time=lambda: False, interrupt=None, on=None):
    return trainer.run(
        round_id,
        batches,
        out_of_time=out_of_time,
        interrupt=interrupt or threading.Event(),
        on_step=on or (lambda step, loss: None),
    )


def trainer_with(**changes):
    return Trainer(bigram_model(), replace(SECTION, **changes), num_rounds=5)


def parameters(trainer):
    return [p.detach().numpy().tobytes() for p in trainer.model.parameters()]


def test_the_rate_warms_up_in_equal_steps_to_its_full_value():
    rates = [learning_rate(step, 100, SECTION) for step in range(10)]
    assert rates == pytest.approx([0.01 * (i + 1) for i in range(10)])


def test_the_rate_is_continuous_where_warm_up_meets_cosine():
    last, first, second = (learning_rate(step, 100, SECTION) for step in (9, 10, 11))
    assert last == first == SECTION.learning_rate
    assert 0 < first - second < 0.001


def test_the_rate_ends_at_its_least_and_stays_there():
    for step in (100, 101, 10**9):
        assert learning_rate(step, 100, SECTION) == pytest.approx(0.1 * SECTION.min_lr_ratio)
    middle = learning_rate(55, 100, SECTION)
    assert middle == pytest.approx(0.1 * (0.1 + 0.9 * 0.5))


def test_without_warm_up_the_rate_begins_at_its_full_value():
    assert learning_rate(0, 100, replace(SECTION, warmup_steps=0)) == SECTION.learning_rate


@given(
    warmup=st.integers(0, 50),
    total=st.integers(1, 200),
    ratio=st.floats(0, 1),
    step=st.integers(0, 300),
)
def test_the_rate_is_positive_bounded_and_falls_after_the_warm_up(warmup, total, ratio, step):
    section = replace(SECTION, warmup_steps=warmup, min_lr_ratio=ratio)
    now, later = (learning_rate(s, total, section) for s in (step, step + 1))
    assert 0 <= now <= section.learning_rate * (1 + 1e-12)
    if step >= warmup:
        assert later <= now
        assert now >= section.learning_rate * ratio * (1 - 1e-12)
    else:
        assert later >= now


def rates_of(trainer, round_id):
    seen = []
    run(
        trainer,
        round_id=round_id,
        on=lambda step, loss: seen.append(trainer.optimizer.param_groups[0]["lr"]),
    )
    return seen


def test_the_rate_is_a_function_of_the_runs_step_whatever_happened_before():
    expected = [learning_rate(step, 20, SECTION) for step in range(8, 12)]
    assert rates_of(trainer_with(), 3) == expected
    restarted = trainer_with()
    run(restarted, round_id=1, out_of_time=lambda: True)
    assert rates_of(restarted, 3) == expected


def test_a_skipped_batch_does_not_move_the_schedule():
    trainer = trainer_with()
    seen = []
    run(
        trainer,
        lambda step: batch(labelled=step != 1),
        on=lambda step, loss: seen.append(trainer.optimizer.param_groups[0]["lr"]),
    )
    assert seen == [learning_rate(step, 20, SECTION) for step in (0, 2, 3)]


def test_all_steps_are_made_and_told():
    told = []
    trainer = trainer_with()
    result = run(trainer, on=lambda step, loss: told.append((step, loss)))
    assert [step for step, _ in told] == [1, 2, 3, 4]
    losses = [loss for _, loss in told]
    assert (result.steps, result.tokens, result.reason) == (4, 40, EndReason.ALL_STEPS)
    assert (result.first_loss, result.last_loss) == (losses[0], losses[-1])
    assert result.mean_loss == pytest.approx(sum(losses) / 4)


def test_training_lowers_the_loss():
    trainer = Trainer(bigram_model(), replace(SECTION, inner_steps=60), num_rounds=1)
    result = run(trainer, lambda step: batch(1))
    assert result.last_loss < result.first_loss / 2
    assert trainer.evaluate(batch(1)) < result.first_loss / 2


def test_the_loss_is_the_mean_over_labelled_tokens():
    trainer = trainer_with()
    one = batch(3)
    labels = one.labels.copy()
    labels[0, :] = IGNORED_LABEL
    half = Batch(inputs=one.inputs, labels=labels)
    only = Batch(inputs=one.inputs[1:], labels=one.labels[1:])
    assert trainer.evaluate(half) == pytest.approx(trainer.evaluate(only))


def test_evaluating_changes_nothing():
    trainer = trainer_with()
    before = parameters(trainer)
    trainer.evaluate(batch())
    assert parameters(trainer) == before
    assert trainer.state_arrays() == {}


def test_a_batch_without_labels_is_skipped():
    trainer = trainer_with()
    before = parameters(trainer)
    result = run(trainer, lambda step: batch(labelled=False))
    assert (result.steps, result.tokens) == (0, 0)
    assert math.isnan(result.first_loss)
    assert math.isnan(result.mean_loss)
    assert math.isnan(result.last_loss)
    assert parameters(trainer) == before
    assert run(trainer_with(), lambda step: batch(labelled=step > 0)).steps == 3


def test_at_the_deadline_it_ends_before_the_next_step():
    answers = iter([False, False, True])
    result = run(trainer_with(), out_of_time=lambda: next(answers))
    assert (result.steps, result.reason) == (2, EndReason.DEADLINE)


def test_an_interrupt_ends_it_after_the_step_in_progress():
    interrupt = threading.Event()
    result = run(
        trainer_with(),
        interrupt=interrupt,
        on=lambda step, loss: interrupt.set() if step == 3 else None,
    )
    assert (result.steps, result.reason) == (3, EndReason.INTERRUPTED)


def test_an_interrupt_goes_before_the_deadline_in_the_reason():
    interrupt = threading.Event()
    interrupt.set()
    result = run(trainer_with(), interrupt=interrupt, out_of_time=lambda: True)
    assert (result.steps, result.reason) == (0, EndReason.INTERRUPTED)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_a_loss_that_is_not_finite_halts_and_leaves_the_parameters(value):
    trainer = trainer_with()
    with torch.no_grad():
        next(iter(trainer.model.parameters()))[:] = value
    before = parameters(trainer)
    with pytest.raises(HaltError, match="diverged"):
        run(trainer)
    assert parameters(trainer) == before


def test_a_gradient_that_is_not_finite_halts_though_the_loss_is():
    trainer = trainer_with()
    for parameter in trainer.model.parameters():
        parameter.register_hook(lambda gradient: gradient * math.inf)
    before = parameters(trainer)
    with pytest.raises(HaltError, match="gradient norm"):
        run(trainer)
    assert parameters(trainer) == before


def test_gradients_are_clipped_to_the_manifests_norm():
    norms = []
    trainer = trainer_with(grad_clip=1e-3)
    run(
        trainer,
        on=lambda step, loss: norms.append(
            math.sqrt(sum(float(p.grad.square().sum()) for p in trainer.model.parameters()))
        ),
    )
    assert max(norms) <= 1e-3 * 1.001


def test_the_base_is_loaded_into_the_model():
    trainer = trainer_with()
    run(trainer)
    trainer.load_base(bigram_base())
    assert parameters(trainer) == parameters(trainer_with())


def test_adamws_state_goes_on_in_another_trainer_to_the_bit():
    one, other = trainer_with(), trainer_with()
    run(one)
    other.load_base([p.detach().numpy().reshape(-1) for p in one.model.parameters()])
    other.load_state_arrays(one.state_arrays())
    results = [run(t, lambda step: batch(step + 9), round_id=2) for t in (one, other)]
    assert results[0] == results[1]
    assert parameters(one) == parameters(other)
    for name, value in one.state_arrays().items():
        assert value.tobytes() == other.state_arrays()[name].tobytes()


def test_a_state_array_is_a_copy():
    trainer = trainer_with()
    run(trainer)
    arrays = trainer.state_arrays()
    kept = {name: value.tobytes() for name, value in arrays.items()}
    run(trainer)
    assert {name: value.tobytes() for name, value in arrays.items()} == kept


def test_moving_the_model_keeps_what_the_steps_have_learned():
    trainer = trainer_with()
    start = bigram_base()
    run(trainer)
    before = [p.detach().numpy().reshape(-1).copy() for p in trainer.model.parameters()]
    to = [flat * np.float32(3) + np.float32(1) for flat in start]
    trainer.move(start, to)
    after = [p.detach().numpy().reshape(-1) for p in trainer.model.parameters()]
    for old, new, here, there in zip(before, after, start, to, strict=True):
        assert not np.array_equal(old, here)
        assert np.allclose(new - there, old - here, atol=1e-5)


def test_the_model_may_be_moved_before_every_step():
    calls: list[str] = []
    trainer = trainer_with()

    def next_batch(step):
        calls.append(f"batch {step}")
        return batch(step)

    trainer.run(
        1,
        next_batch,
        out_of_time=lambda: False,
        interrupt=threading.Event(),
        on_step=lambda step, loss: calls.append("step"),
        before_step=lambda: calls.append("move?"),
    )
    assert calls == [c for i in range(4) for c in ("move?", f"batch {i}", "step")]
