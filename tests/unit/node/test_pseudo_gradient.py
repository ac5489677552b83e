import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.compression import ErrorFeedback, check_body, dequantize
from shoal.node.pseudo_gradient import pseudo_gradient
from tests.support.manifests import small_layout


def test_it_is_base_minus_local_so_that_subtracting_it_moves_towards_local():
    base = [np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)]
    local = [torch.tensor([[0.5, 2.0], [4.0, 4.0]])]
    (found,) = pseudo_gradient(base, local)
    assert found.tolist() == [0.5, 0.0, -1.0, 0.0]
    assert (base[0] - found).tolist() == local[0].reshape(-1).tolist()


def test_it_is_fresh_float32_and_detached():
    base = [np.zeros(3, dtype=np.float32)]
    parameter = torch.nn.Parameter(torch.ones(3))
    (found,) = pseudo_gradient(base, [parameter])
    found[:] = 7.0
    assert base[0].tolist() == [0.0] * 3
    assert parameter.tolist() == [1.0] * 3
    assert found.dtype == np.float32


def test_another_number_of_tensors_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        pseudo_gradient([np.zeros(3, dtype=np.float32)], [])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), decay=st.sampled_from([0.0, 0.9, 0.95, 1.0]))
def test_committed_mass_is_kept_or_sent_and_rolled_back_mass_is_kept(seed, decay):
    layout = small_layout()
    rng = np.random.default_rng(seed)

    def draw():
        return [rng.standard_normal(size).astype(np.float32) for size in layout.sizes]

    base = draw()
    local = [torch.from_numpy(values) for values in draw()]
    gradient = pseudo_gradient(base, local)
    residual = draw()
    for ends in ("commit", "rollback"):
        feedback = ErrorFeedback(layout, decay)
        feedback.restore(residual, None)
        body = feedback.stage(gradient).body
        sent = [np.zeros(size, dtype=np.float64) for size in layout.sizes]
        if ends == "commit":
            feedback.commit()
            for flat, (positions, values) in zip(
                sent, dequantize(check_body(body, layout)), strict=True
            ):
                flat[positions] = values
            assert any(flat.any() for flat in sent)
        else:
            feedback.rollback()
        for after, out, old, new in zip(feedback.residuals, sent, residual, gradient, strict=True):
            whole = np.float64(np.float32(decay)) * old + new
            assert np.allclose(after + out, whole, rtol=1e-6, atol=1e-6)
