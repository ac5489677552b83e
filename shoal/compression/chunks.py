"""The steps of one chunk, for inspection and tests; whole bodies go through the kernels.

Selection: the k elements of largest magnitude, of equal ones those at lower indices. Scales: with
two, the split of the kept magnitudes into two groups with the least squared error about the groups'
means; with one, the mean. Guarantees the same bytes, and the same errors, as for a chunk of a body.
Does no error feedback.

On accumulators under AdamW the kept magnitudes of a chunk are nearly equal, which is why scales are
fitted to each chunk: levels fixed in advance do far worse.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.compression.checking import check_chunks
from shoal.compression.enumerative import decode_indices
from shoal.compression.error_feedback import ErrorFeedback
from shoal.compression.errors import SpecMismatchError
from shoal.compression.kernels.fit import fit_chunk
from shoal.compression.kernels.select import select_chunk
from shoal.compression.layout import BodyLayout
from shoal.compression.spec import CodecSpec


@dataclass(frozen=True, slots=True, eq=False)
class FittedScales:
    """What represents the kept magnitudes of a chunk.

    Attributes:
        low_bits: low scale as an fp16 bit pattern, 0 for an empty chunk.
        high_bits: high scale likewise, equal to low_bits if there is only one.
        is_high: (k,) bool, which magnitudes the high scale stands for; none if both are equal.
    """

    low_bits: int
    high_bits: int
    is_high: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class UnpackedChunk:
    """The fields of a packed chunk.

    Attributes:
        indices: (k,) int64, strictly increasing; (0,) for an empty chunk, as the next two.
        is_negative: (k,) bool.
        is_high: (k,) bool.
        scale_low: units of 2^-24, 0 for an empty chunk.
        scale_high: likewise.
    """

    indices: npt.NDArray[np.int64]
    is_negative: npt.NDArray[np.bool_]
    is_high: npt.NDArray[np.bool_]
    scale_low: int
    scale_high: int


def select_top_k(values: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.int64]:
    """Indices of the k elements of largest |x|, ties to the lower index.

    Args:
        values: (n,) float32, contiguous, finite.
        k: 1..n.

    Returns:
        (k,) int64, strictly increasing.

    Raises:
        SpecMismatchError: values or k are not as described.
    """
    if values.ndim != 1 or values.dtype != np.float32 or not values.flags.c_contiguous:
        raise SpecMismatchError(
            f"values: expected contiguous (n,) float32, got {values.shape} {values.dtype}"
        )
    if not 1 <= k <= values.size:
        raise SpecMismatchError(f"k: expected 1..{values.size}, got {k}")
    if not np.isfinite(values).all():
        raise SpecMismatchError("values: expected finite numbers, found NaN or infinity")
    indices = np.empty(k, dtype=np.int64)
    maxima, magnitudes = (np.empty(values.size, dtype=np.int32) for _ in range(2))
    lanes, candidates = (np.empty(values.size, dtype=np.int64) for _ in range(2))
    select_chunk(values.view(np.int32), k, maxima, lanes, magnitudes, candidates, indices)
    return indices


def fit_scales(magnitudes: npt.NDArray[np.float32], spec: CodecSpec) -> FittedScales:
    """Fit the scales of a chunk's kept magnitudes.

    Args:
        magnitudes: (k,) float32, k >= 1, finite, none negative, in any order.
        spec: says how many scales there are and which is the largest.

    Raises:
        SpecMismatchError: magnitudes are not as described.
    """
    if magnitudes.ndim != 1 or magnitudes.dtype != np.float32 or magnitudes.size == 0:
        raise SpecMismatchError(
            f"magnitudes: expected (k,) float32, got {magnitudes.shape} {magnitudes.dtype}"
        )
    if not np.isfinite(magnitudes).all() or (magnitudes < 0).any():
        raise SpecMismatchError("magnitudes: expected finite numbers, none negative")
    # Adding zero turns -0.0 into 0.0, whose bits sort as the kernel expects.
    exact = magnitudes.astype(np.float64) + 0.0
    keys, ascending = np.empty(exact.size, dtype=np.int64), np.empty(exact.size)
    low_bits, high_bits, high_from = fit_chunk(
        exact, spec.value_bits, spec.max_scale_bits, keys, ascending
    )
    return FittedScales(int(low_bits), int(high_bits), exact >= high_from)


def pack_chunk(values: npt.NDArray[np.float32], spec: CodecSpec) -> bytes:
    """Select, fit and pack one chunk.

    Args:
        values: (n,) float32, contiguous, 1 <= n <= chunk_size.
        spec: the codec's numbers.

    Raises:
        SpecMismatchError: values are not as described.
        NonFiniteError: values hold NaN or infinity.
    """
    spec.kept(values.size)
    feedback = ErrorFeedback(BodyLayout(spec, [values.size]), 0.0)
    return feedback.stage([values]).body


def unpack_chunk(packed: bytes, chunk_len: int, spec: CodecSpec) -> UnpackedChunk:
    """Check one packed chunk and take it apart.

    Args:
        packed: spec.chunk_bytes(chunk_len) bytes.
        chunk_len: n, 1..chunk_size.
        spec: the codec's numbers.

    Raises:
        SpecMismatchError: chunk_len is out of range.
        CorruptBodyError: the bytes are not a chunk.
    """
    kept, index_bytes = spec.kept(chunk_len), spec.index_bytes(chunk_len)
    checked = check_chunks(packed, BodyLayout(spec, [chunk_len]))
    if not checked.num_kept[0]:
        none = np.empty(0, dtype=np.bool_)
        return UnpackedChunk(np.empty(0, dtype=np.int64), none, none, 0, 0)
    raw = np.frombuffer(packed, dtype=np.uint8)[index_bytes:][: spec.value_bytes(chunk_len)]
    bits = np.unpackbits(raw, bitorder="little")[: spec.value_bits * kept]
    codes = bits.reshape(kept, spec.value_bits).astype(np.bool_)
    return UnpackedChunk(
        decode_indices(packed[:index_bytes], chunk_len, kept),
        codes[:, 0],
        codes[:, 1] if spec.value_bits == 2 else np.zeros(kept, dtype=np.bool_),
        int(checked.scale_low[0]),
        int(checked.scale_high[0]),
    )
