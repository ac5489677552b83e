"""Compiles all kernels into numba's cache, so that no round waits for the compiler.

Guarantees that the public functions find their kernels compiled afterwards, in this process and, as
the cache is on disk, in later ones. Says nothing and writes nothing else.
"""

import numpy as np

from shoal.compression.checking import check_body
from shoal.compression.chunks import fit_scales, select_top_k
from shoal.compression.decoding import dequantize, sum_bodies
from shoal.compression.enumerative import decode_indices, encode_indices
from shoal.compression.error_feedback import ErrorFeedback
from shoal.compression.layout import BodyLayout
from shoal.compression.spec import CodecSpec


def warm_up() -> None:
    """Run every public function once on a few numbers."""
    spec = CodecSpec(chunk_size=16, k_per_chunk=4)
    layout = BodyLayout(spec, [40])
    values = np.linspace(-1.0, 1.0, 40, dtype=np.float32)
    feedback = ErrorFeedback(layout, 0.5)
    checked = check_body(feedback.stage([values]).body, layout)
    feedback.commit()
    dequantize(checked)
    sum_bodies([checked], [1], np.full(layout.num_chunks, 1, dtype=np.int64), layout)
    fit_scales(np.abs(values), spec)
    indices = select_top_k(values, 4)
    decode_indices(encode_indices(indices, 40), 40, 4)


if __name__ == "__main__":
    warm_up()
