"""A peer's bytes to a checked body.

Guarantees that a `CheckedBody` is complete and canonical: right length, every scale allowed, every
index code the number of an index set, no bit that does not matter, at least one kept value; that
any other bytes raise `CorruptBodyError` with the first rule that they break. Takes one pass over
the bytes and decodes no index. Does not know who sent them: signature and digest come before this.
"""

from dataclasses import InitVar, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.compression.errors import CorruptBodyError, CorruptionCode, SpecMismatchError
from shoal.compression.kernels import check as kernels
from shoal.compression.layout import BodyLayout
from shoal.compression.threads import Piece, pieces_of, run_pieces

_CODES: Final[dict[int, CorruptionCode]] = {
    kernels.SCALE_NONFINITE: "E_SCALE_NONFINITE",
    kernels.SCALE_SIGN: "E_SCALE_SIGN",
    kernels.SCALE_SUBNORMAL: "E_SCALE_SUBNORMAL",
    kernels.SCALE_RANGE: "E_SCALE_RANGE",
    kernels.SCALE_ORDER: "E_SCALE_ORDER",
    kernels.EMPTY_CHUNK: "E_EMPTY_CHUNK",
    kernels.PADDING: "E_PADDING",
    kernels.INDEX_RANGE: "E_INDEX_RANGE",
}
_PROOF: Final = object()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CheckedBody:
    """A body that passed `check_body`, the only maker of this type; immutable.

    Attributes:
        body: the bytes.
        layout: the layout under which they were checked.
        scale_low: (num_chunks,) int64, units of 2^-24; 0 for an empty chunk.
        scale_high: (num_chunks,) int64, likewise; equal to scale_low where a chunk uses one scale.
        num_high: (num_chunks,) int32, kept values at the high scale.
        num_kept: (num_chunks,) int32, kept values, 0 for an empty chunk.

    Raises:
        SpecMismatchError: somebody else than `check_body` called the constructor.
    """

    body: bytes
    layout: BodyLayout
    scale_low: npt.NDArray[np.int64]
    scale_high: npt.NDArray[np.int64]
    num_high: npt.NDArray[np.int32]
    num_kept: npt.NDArray[np.int32]
    proof: InitVar[object]

    def __post_init__(self, proof: object) -> None:
        if proof is not _PROOF:
            raise SpecMismatchError("CheckedBody: expected to be made by check_body only")


def check_body(
    body: bytes | memoryview, layout: BodyLayout, *, num_threads: int = 1
) -> CheckedBody:
    """Check a received body.

    Args:
        body: what a peer sent; a memoryview is copied, so that it cannot change after the check.
        layout: the run's layout.
        num_threads: threads to use.

    Raises:
        CorruptBodyError: a rule is broken; of several, the first of the first chunk.
        SpecMismatchError: num_threads is below 1.
    """
    checked = check_chunks(body, layout, num_threads=num_threads)
    if not checked.num_kept.any():
        raise CorruptBodyError("E_ALL_ZERO")
    return checked


def check_chunks(
    body: bytes | memoryview, layout: BodyLayout, *, num_threads: int = 1
) -> CheckedBody:
    """Check a body as `check_body` does, but let one pass of which every chunk is empty.

    Our own body may be that: there was nothing to send. A received one may not.

    Args:
        body: the bytes.
        layout: the run's layout.
        num_threads: threads to use.

    Raises:
        CorruptBodyError: a rule is broken; of several, the first of the first chunk.
        SpecMismatchError: num_threads is below 1.
    """
    length = memoryview(body).nbytes
    if length != layout.body_bytes:
        detail = f": expected {layout.body_bytes} bytes, got {length}"
        raise CorruptBodyError("E_BODY_LEN", detail=detail)
    checked = CheckedBody(
        body=bytes(body),
        layout=layout,
        scale_low=np.zeros(layout.num_chunks, dtype=np.int64),
        scale_high=np.zeros(layout.num_chunks, dtype=np.int64),
        num_high=np.zeros(layout.num_chunks, dtype=np.int32),
        num_kept=np.zeros(layout.num_chunks, dtype=np.int32),
        proof=_PROOF,
    )
    _fill(checked, num_threads)
    for array in (checked.scale_low, checked.scale_high, checked.num_high, checked.num_kept):
        array.flags.writeable = False
    return checked


def tensor_bytes(body: bytes, layout: BodyLayout, tensor_index: int) -> npt.NDArray[np.uint8]:
    """The packed bytes of one tensor as a read-only (packed_bytes,) uint8 view."""
    offset = layout.tensor_offsets[tensor_index]
    count = layout.tensor_offsets[tensor_index + 1] - offset
    return np.frombuffer(body, dtype=np.uint8, count=count, offset=offset)


def _fill(checked: CheckedBody, num_threads: int) -> None:
    pieces = pieces_of(checked.layout)
    found = run_pieces(lambda piece: _check_piece(checked, piece), pieces, num_threads)
    for (rule, chunk), piece in zip(found, pieces, strict=True):
        if rule != kernels.FINE:
            raise CorruptBodyError(_CODES[rule], tensor_index=piece.tensor_index, chunk_index=chunk)


def _check_piece(checked: CheckedBody, piece: Piece) -> tuple[int, int]:
    layout = checked.layout
    tensor = layout.tensors[piece.tensor_index]
    start = layout.chunk_starts[piece.tensor_index]
    chunks = slice(start, start + tensor.num_chunks)
    rule, chunk = kernels.check_chunks(
        tensor_bytes(checked.body, layout, piece.tensor_index),
        tensor.geometry,
        tensor.largest_codes,
        tensor.num_chunks,
        piece.first,
        piece.last,
        layout.spec.value_bits,
        layout.spec.max_scale_bits,
        checked.scale_low[chunks],
        checked.scale_high[chunks],
        checked.num_high[chunks],
        checked.num_kept[chunks],
    )
    return int(rule), int(chunk)
