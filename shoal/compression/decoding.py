"""A checked body to positions and values, and many of them to one integer sum.

Guarantees that every machine computes the same integers: a kept value is sign * scale in units of
2^-24, a weight is Q15, sums are int64 and exact, so the order of bodies and the number of threads
change nothing. Does not divide by the number of peers and does not touch parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.compression.checking import CheckedBody, tensor_bytes
from shoal.compression.errors import SpecMismatchError
from shoal.compression.kernels.decode import decode_chunks
from shoal.compression.kernels.sums import sum_chunks
from shoal.compression.layout import BodyLayout
from shoal.compression.threads import Piece, pieces_of, pieces_of_tensor, run_pieces

# A count is one byte, and 255 * 2^15 * (the largest fp16 number, below 2^40 units) is below 2^63.
MAX_BODIES: Final = 255
MAX_WEIGHT: Final = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class IntegerSum:
    """The sum of many payloads' contributions to one tensor.

    Attributes:
        positions: (m,) uint32, strictly increasing; flat positions that at least one body touched.
        sums: (m,) int64, sum of weight * sign * min(scale, cap), in units of 2^-39.
        counts: (m,) uint8, how many bodies touched the position.
    """

    positions: npt.NDArray[np.uint32]
    sums: npt.NDArray[np.int64]
    counts: npt.NDArray[np.uint8]


def dequantize(
    body: CheckedBody, *, num_threads: int = 1
) -> list[tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]]:
    """The kept positions and values of each tensor, exactly as every peer decodes them.

    Args:
        body: a checked body.
        num_threads: threads to use.

    Returns:
        for each tensor, (m,) uint32 strictly increasing flat positions and (m,) float32 values.

    Raises:
        SpecMismatchError: num_threads is below 1.
    """
    layout = body.layout
    ends = np.concatenate(([0], np.cumsum(body.num_kept, dtype=np.int64)))
    bounds = [int(ends[start]) for start in layout.chunk_starts]
    decoded = [
        (np.empty(stop - start, dtype=np.uint32), np.empty(stop - start, dtype=np.float32))
        for start, stop in pairwise(bounds)
    ]

    def decode(piece: Piece) -> None:
        tensor = layout.tensors[piece.tensor_index]
        first_chunk = layout.chunk_starts[piece.tensor_index] + piece.first
        decode_chunks(
            tensor_bytes(body.body, layout, piece.tensor_index),
            tensor.geometry,
            tensor.num_chunks,
            piece.first,
            piece.last,
            layout.spec.value_bits,
            layout.table(),
            *decoded[piece.tensor_index],
            int(ends[first_chunk]) - bounds[piece.tensor_index],
        )

    run_pieces(decode, pieces_of(layout), num_threads)
    return decoded


def sum_bodies(
    bodies: Sequence[CheckedBody],
    weights: Sequence[int],
    caps: npt.NDArray[np.int64],
    layout: BodyLayout,
    *,
    num_threads: int = 1,
) -> list[IntegerSum]:
    """Add up the bodies that count in a round: A_j = sum_i w_i * sign_ij * min(scale_ij, cap).

    A position is touched, and counted, if any non-empty chunk selects it, whatever weight or cap.

    Args:
        bodies: up to 255 bodies, checked under an equal layout.
        weights: Q15, 0..2^15, one for each body.
        caps: (num_chunks,) int64, 0 or more; upper bound on each scale in units of 2^-24.
        layout: the run's layout.
        num_threads: threads to use.

    Returns:
        one sum for each tensor.

    Raises:
        SpecMismatchError: arguments do not fit each other or are out of range.
    """
    _require_summable(bodies, weights, caps, layout)
    return [
        _sum_tensor(t, bodies, np.array(weights, dtype=np.int64), caps, layout, num_threads)
        for t in range(len(layout.sizes))
    ]


def _require_summable(
    bodies: Sequence[CheckedBody],
    weights: Sequence[int],
    caps: npt.NDArray[np.int64],
    layout: BodyLayout,
) -> None:
    if len(bodies) > MAX_BODIES:
        raise SpecMismatchError(f"bodies: expected at most {MAX_BODIES}, got {len(bodies)}")
    if len(weights) != len(bodies):
        raise SpecMismatchError(f"weights: expected {len(bodies)} of them, got {len(weights)}")
    given = np.array(weights) if weights else np.zeros(0, dtype=np.int64)
    if given.dtype.kind not in "iu" or ((given < 0) | (given > MAX_WEIGHT)).any():
        raise SpecMismatchError(f"weights: expected 0..{MAX_WEIGHT}, got {list(weights)}")
    if caps.dtype != np.int64 or caps.shape != (layout.num_chunks,) or (caps < 0).any():
        raise SpecMismatchError(
            f"caps: expected ({layout.num_chunks},) int64, none negative; "
            f"got {caps.shape} {caps.dtype}"
        )
    if any(body.layout != layout for body in bodies):
        raise SpecMismatchError("bodies: expected all to be checked under the layout given")


def _sum_tensor(
    tensor_index: int,
    bodies: Sequence[CheckedBody],
    weights: npt.NDArray[np.int64],
    caps: npt.NDArray[np.int64],
    layout: BodyLayout,
    num_threads: int,
) -> IntegerSum:
    tensor = layout.tensors[tensor_index]
    start = layout.chunk_starts[tensor_index]
    chunks = slice(start, start + tensor.num_chunks)
    touched = np.zeros(tensor.num_chunks, dtype=np.int64)
    for body in bodies:
        touched += body.num_kept[chunks]
    # What the bodies touch at most; chunks are written at these places and moved together after.
    np.minimum(touched, layout.spec.chunk_size, out=touched)
    ends = np.concatenate(([0], np.cumsum(touched)))
    positions = np.empty(int(ends[-1]), dtype=np.uint32)
    sums = np.empty(int(ends[-1]), dtype=np.int64)
    counts = np.empty(int(ends[-1]), dtype=np.uint8)
    tensor_caps = caps[chunks].copy()

    def add(piece: Piece) -> tuple[int, int]:
        stop = sum_chunks(
            _stack(bodies, layout, piece),
            weights,
            tensor_caps,
            tensor.geometry,
            tensor.num_chunks,
            piece.first,
            piece.last,
            layout.spec.value_bits,
            layout.table(),
            positions,
            sums,
            counts,
            int(ends[piece.first]),
        )
        return int(ends[piece.first]), int(stop)

    filled = run_pieces(add, pieces_of_tensor(layout, tensor_index), num_threads)
    return IntegerSum(
        _close_gaps(positions, filled), _close_gaps(sums, filled), _close_gaps(counts, filled)
    )


def _stack(
    bodies: Sequence[CheckedBody], layout: BodyLayout, piece: Piece
) -> npt.NDArray[np.uint8]:
    """The packed bytes of a piece, (num_bodies, bytes) uint8: a kernel cannot take a list."""
    stride = int(layout.tensors[piece.tensor_index].geometry[0, 4])
    part = slice(piece.first * stride, piece.last * stride)
    rows = [tensor_bytes(body.body, layout, piece.tensor_index)[part] for body in bodies]
    return np.stack(rows) if rows else np.empty((0, 0), dtype=np.uint8)


Number = TypeVar("Number", np.uint32, np.int64, np.uint8)


def _close_gaps(
    array: npt.NDArray[Number], filled: Sequence[tuple[int, int]]
) -> npt.NDArray[Number]:
    """Move the filled ranges together, in place, and give the rest of the memory back."""
    length = 0
    for start, stop in filled:
        array[length : length + stop - start] = array[start:stop]
        length += stop - start
    # No reference to the array is left but ours and the caller's frames, which numpy cannot know.
    array.resize(length, refcheck=False)
    return array
