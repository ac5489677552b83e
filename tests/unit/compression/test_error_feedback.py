import math

import numpy as np
import pytest

from shoal.compression import (
    BodyLayout,
    CodecSpec,
    CorruptBodyError,
    ErrorFeedback,
    NonFiniteError,
    OutOfOrderError,
    SpecMismatchError,
    check_body,
    dequantize,
)
from shoal.compression.threads import CHUNKS_PER_PIECE
from tests.unit.compression.bodies import random_tensors

SPEC = CodecSpec(chunk_size=16, k_per_chunk=4)
LAYOUT = BodyLayout(SPEC, [40, 0, 16])


def tensors(seed):
    return random_tensors(LAYOUT.sizes, seed, palette_ratio=0.0)


def copies(feedback):
    return [residual.copy() for residual in feedback.residuals]


def all_equal(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_residual_starts_at_zero():
    feedback = ErrorFeedback(LAYOUT, 0.95)
    assert [r.shape for r in feedback.residuals] == [(40,), (0,), (16,)]
    assert all(r.dtype == np.float32 and not r.any() for r in feedback.residuals)


def test_staging_decays_first_and_then_adds():
    feedback = ErrorFeedback(LAYOUT, 0.5)
    feedback.stage(tensors(1))
    feedback.rollback()
    feedback.stage(tensors(2))
    expected = [np.float32(0.5) * a + b for a, b in zip(tensors(1), tensors(2), strict=True)]
    assert all_equal(feedback.residuals, expected)


def test_a_commit_subtracts_exactly_what_others_decode():
    feedback = ErrorFeedback(LAYOUT, 0.95)
    body = feedback.stage(tensors(1)).body
    expected = copies(feedback)
    for residual, (positions, values) in zip(
        expected, dequantize(check_body(body, LAYOUT)), strict=True
    ):
        residual[positions] -= values
    feedback.commit()
    assert all_equal(feedback.residuals, expected)


def test_a_rollback_keeps_everything():
    feedback = ErrorFeedback(LAYOUT, 0.95)
    feedback.stage(tensors(1))
    feedback.rollback()
    assert all_equal(feedback.residuals, tensors(1))


def test_what_was_held_back_is_sent_later():
    feedback = ErrorFeedback(LAYOUT, 1.0)
    sent = [np.zeros(size) for size in LAYOUT.sizes]
    nothing = [np.zeros(size, dtype=np.float32) for size in LAYOUT.sizes]
    for gradient in [tensors(1), *[nothing] * 40]:
        for total, (positions, values) in zip(
            sent, dequantize(check_body(feedback.stage(gradient).body, LAYOUT)), strict=True
        ):
            total[positions] += values
        feedback.commit()
    for total, tensor in zip(sent, tensors(1), strict=True):
        assert np.allclose(total, tensor, atol=2e-3)


def test_the_order_of_calls_is_enforced():
    feedback = ErrorFeedback(LAYOUT, 0.95)
    for verb in (feedback.commit, feedback.rollback):
        with pytest.raises(OutOfOrderError):
            verb()
    feedback.stage(tensors(1))
    before = copies(feedback)
    with pytest.raises(OutOfOrderError):
        feedback.stage(tensors(2))
    assert all_equal(feedback.residuals, before)
    feedback.commit()
    with pytest.raises(OutOfOrderError):
        feedback.commit()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_changes_nothing(bad):
    feedback = ErrorFeedback(LAYOUT, 0.95)
    feedback.stage(tensors(1))
    feedback.commit()
    before = copies(feedback)
    gradient = tensors(2)
    gradient[2][7] = bad
    with pytest.raises(NonFiniteError) as caught:
        feedback.stage(gradient)
    assert caught.value.tensor_index == 2
    assert all_equal(feedback.residuals, before)
    feedback.stage(tensors(2))


def test_an_overflowing_accumulator_is_noticed():
    feedback = ErrorFeedback(LAYOUT, 1.0)
    huge = [np.full(size, 3e38, dtype=np.float32) for size in LAYOUT.sizes]
    feedback.stage(huge)
    feedback.rollback()
    with pytest.raises(NonFiniteError):
        feedback.stage(huge)


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [np.zeros(40, dtype=np.float32)],
        [np.zeros(n, dtype=np.float32) for n in (40, 0, 17)],
        [np.zeros(n) for n in (40, 0, 16)],
        [np.zeros((n, 1), dtype=np.float32) for n in (40, 0, 16)],
        [np.zeros(2 * n, dtype=np.float32)[::2] for n in (40, 0, 16)],
    ],
)
def test_arrays_that_do_not_fit_the_layout_are_refused(arrays):
    feedback = ErrorFeedback(LAYOUT, 0.95)
    with pytest.raises(SpecMismatchError):
        feedback.stage(arrays)
    with pytest.raises(SpecMismatchError):
        feedback.restore(arrays, None)


@pytest.mark.parametrize(("decay", "num_threads"), [(-0.1, 1), (1.1, 1), (math.nan, 1), (0.9, 0)])
def test_settings_out_of_range_are_refused(decay, num_threads):
    with pytest.raises(SpecMismatchError):
        ErrorFeedback(LAYOUT, decay, num_threads=num_threads)


def test_a_restored_staged_state_goes_on_as_if_nothing_had_happened():
    feedback = ErrorFeedback(LAYOUT, 0.95)
    feedback.stage(tensors(1))
    feedback.commit()
    body = feedback.stage(tensors(2)).body
    assert feedback.staged_body == body
    for finish in (ErrorFeedback.commit, ErrorFeedback.rollback):
        resumed = ErrorFeedback(LAYOUT, 0.95)
        resumed.restore(copies(feedback), body)
        finish(resumed)
        original = ErrorFeedback(LAYOUT, 0.95)
        original.stage(tensors(1))
        original.commit()
        original.stage(tensors(2))
        finish(original)
        assert resumed.staged_body is None
        assert all_equal(resumed.residuals, original.residuals)
        assert resumed.stage(tensors(3)) == original.stage(tensors(3))


def test_a_bad_checkpoint_is_refused_and_changes_nothing():
    feedback = ErrorFeedback(LAYOUT, 0.95)
    feedback.stage(tensors(1))
    before = copies(feedback)
    with pytest.raises(CorruptBodyError):
        feedback.restore(tensors(2), b"\xff" * LAYOUT.body_bytes)
    bad = tensors(2)
    bad[0][0] = math.nan
    with pytest.raises(NonFiniteError):
        feedback.restore(bad, None)
    assert all_equal(feedback.residuals, before)
    feedback.restore(tensors(2), bytes(LAYOUT.body_bytes))
    feedback.commit()
    assert all_equal(feedback.residuals, tensors(2))


def test_statistics_say_how_good_the_body_is():
    feedback = ErrorFeedback(LAYOUT, 0.95)
    staged = feedback.stage(tensors(1))
    decoded = dequantize(check_body(staged.body, LAYOUT))
    v = np.concatenate([t[p] for t, (p, _) in zip(tensors(1), decoded, strict=True)]).astype(float)
    q = np.concatenate([values for _, values in decoded]).astype(float)
    assert staged.stats.num_kept == v.size == 4 + 4 + 2 + 4
    assert staged.stats.relative_squared_error == pytest.approx(((v - q) ** 2).sum() / (v**2).sum())
    assert staged.stats.mean_ratio == pytest.approx((v * q).sum() / (v**2).sum())
    feedback.commit()
    norm = math.sqrt(sum((r.astype(float) ** 2).sum() for r in feedback.residuals))
    assert staged.stats.residual_norm == pytest.approx(norm)


def test_nothing_worth_sending_is_a_body_of_zeros():
    feedback = ErrorFeedback(LAYOUT, 0.95)
    tiny = [np.full(size, 1e-6, dtype=np.float32) for size in LAYOUT.sizes]
    staged = feedback.stage(tiny)
    assert staged.body == bytes(LAYOUT.body_bytes)
    assert (staged.stats.num_kept, staged.stats.relative_squared_error) == (0, 0.0)
    assert staged.stats.mean_ratio == 1.0
    feedback.commit()
    assert all_equal(feedback.residuals, tiny)


def test_the_number_of_threads_and_read_only_input_change_no_bit():
    layout = BodyLayout(SPEC, [16 * (2 * CHUNKS_PER_PIECE + 5) + 3, 9])
    gradient = random_tensors(layout.sizes, 1, palette_ratio=0.0)
    one, three = (ErrorFeedback(layout, 0.95, num_threads=n) for n in (1, 3))
    staged = one.stage(gradient)
    for array in gradient:
        array.flags.writeable = False
    assert three.stage(gradient) == staged
    one.commit()
    three.commit()
    assert all_equal(one.residuals, three.residuals)
