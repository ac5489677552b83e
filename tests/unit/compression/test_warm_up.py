import subprocess
import sys

import numpy as np

from shoal.compression import (
    BodyLayout,
    CodecSpec,
    ErrorFeedback,
    check_body,
    dequantize,
    sum_bodies,
)
from shoal.compression.kernels import check, decode, encode, sums
from shoal.compression.warm_up import warm_up
from tests.unit.compression.bodies import full_caps, random_tensors


def test_warming_up_says_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "shoal.compression.warm_up"],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_nothing_is_left_to_compile_after_warming_up():
    warm_up()
    layout = BodyLayout(CodecSpec(value_bits=1), [5000, 0, 7])
    feedback = ErrorFeedback(layout, 0.9, num_threads=2)
    gradients, caps = random_tensors(layout.sizes, 0, palette_ratio=0.0), full_caps(layout)
    for array in (*gradients, caps):
        array.flags.writeable = False
    body = feedback.stage(gradients).body
    feedback.commit()
    checked = check_body(memoryview(body), layout, num_threads=2)
    dequantize(checked)
    sum_bodies([checked] * 3, np.array([1, 2, 3]).tolist(), caps, layout, num_threads=2)
    for kernel in (
        encode.all_finite,
        encode.stage_chunks,
        check.check_chunks,
        decode.decode_chunks,
        sums.sum_chunks,
    ):
        assert len(getattr(kernel, "signatures")) == 1  # noqa: B009 - numba is untyped here


def test_the_package_imports_no_torch():
    program = "import shoal.compression, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
