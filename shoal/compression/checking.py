"""A peer's bytes to a checked body.

Guarantees that a `CheckedBody` is complete and canonical: right length, every scale allowed, every
index code the number of an index set, no bit that does not matter, at least one kept value; that
any other bytes raise `CorruptBodyError` with the first rule that they break. Takes one pass over
the bytes and decodes no index; `ArrivingBody` takes it while they arrive.

Does not know who sent them: nobody may be told of the result before signature and digest are known
to be right.
"""

from dataclasses import InitVar, dataclass, replace
from typing import Final, NamedTuple

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


class Verdict(NamedTuple):
    """What the kernel says of a piece: the first rule that is broken, and in which chunk."""

    rule: int
    chunk: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CheckedBody:
    """A body that passed `check_body`, the only maker of this type; immutable.

    Attributes:
        body: the bytes, or a view of bytes that do not change any more.
        layout: the layout under which they were checked.
        scale_low: (num_chunks,) int64, units of 2^-24; 0 for an empty chunk.
        scale_high: (num_chunks,) int64, likewise; equal to scale_low where a chunk uses one scale.
        num_high: (num_chunks,) int32, kept values at the high scale.
        num_kept: (num_chunks,) int32, kept values, 0 for an empty chunk.

    Raises:
        SpecMismatchError: somebody else than `check_body` called the constructor.
    """

    body: bytes | memoryview
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
        body: what a peer sent; copied unless it is `bytes` or a view of them, so that it cannot
            change after the check.
        layout: the run's layout.
        num_threads: threads to use.

    Raises:
        CorruptBodyError: a rule is broken; of several, the first of the first chunk.
        SpecMismatchError: num_threads is below 1.
    """
    return _not_all_zero(check_chunks(body, layout, num_threads=num_threads))


def _not_all_zero(checked: CheckedBody) -> CheckedBody:
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
    _check_length(memoryview(body).nbytes, layout)
    checked = _unchecked(_immutable(body), layout)
    pieces = pieces_of(layout)
    found = run_pieces(lambda piece: _check_piece(checked, piece), pieces, num_threads)
    for verdict, piece in zip(found, pieces, strict=True):
        _require_fine(verdict, piece)
    return _frozen(checked)


class ArrivingBody:
    """Checks a body piece by piece while it arrives.

    Nothing is said before `finish`: whether these are the bytes that were signed shows at the end.

    Args:
        layout: the run's layout.
    """

    def __init__(self, layout: BodyLayout) -> None:
        self._layout = layout
        self._pieces = pieces_of(layout)
        self._ends = [_end_of(piece, layout) for piece in self._pieces]
        self._checked = _unchecked(b"", layout)
        self._verdicts: list[Verdict] = []

    def advance(self, body: memoryview, num_arrived: int) -> None:
        """Check the pieces that are whole.

        Args:
            body: room for the whole body; what has arrived in it must not change any more.
            num_arrived: bytes that are there.

        Raises:
            CorruptBodyError: E_BODY_LEN, the room has another length than a body.
        """
        _check_length(body.nbytes, self._layout)
        seen = replace(self._checked, body=body.toreadonly(), proof=_PROOF)
        while self._has_piece(num_arrived):
            self._verdicts.append(_check_piece(seen, self._pieces[len(self._verdicts)]))

    def _has_piece(self, num_arrived: int) -> bool:
        number = len(self._verdicts)
        return number < len(self._pieces) and self._ends[number] <= num_arrived

    def finish(self, body: bytes | memoryview) -> CheckedBody:
        """Check what is left, and give the body.

        Args:
            body: the whole of what was seen arriving, not copied: from now on it must not change.

        Returns:
            What `check_body` gives.

        Raises:
            CorruptBodyError: as `check_body`.
        """
        whole = memoryview(body).toreadonly()
        self.advance(whole, whole.nbytes)
        for verdict, piece in zip(self._verdicts, self._pieces, strict=True):
            _require_fine(verdict, piece)
        return _not_all_zero(_frozen(replace(self._checked, body=whole, proof=_PROOF)))


def tensor_bytes(
    body: bytes | memoryview, layout: BodyLayout, tensor_index: int
) -> npt.NDArray[np.uint8]:
    """The packed bytes of one tensor as a read-only (packed_bytes,) uint8 view."""
    offset = layout.tensor_offsets[tensor_index]
    count = layout.tensor_offsets[tensor_index + 1] - offset
    return np.frombuffer(body, dtype=np.uint8, count=count, offset=offset)


def _check_length(num_bytes: int, layout: BodyLayout) -> None:
    if num_bytes != layout.body_bytes:
        detail = f": expected {layout.body_bytes} bytes, got {num_bytes}"
        raise CorruptBodyError("E_BODY_LEN", detail=detail)


def _immutable(body: bytes | memoryview) -> bytes | memoryview:
    is_immutable = isinstance(body, bytes) or (body.readonly and isinstance(body.obj, bytes))
    return body if is_immutable else bytes(body)


def _unchecked(body: bytes | memoryview, layout: BodyLayout) -> CheckedBody:
    return CheckedBody(
        body=body,
        layout=layout,
        scale_low=np.zeros(layout.num_chunks, dtype=np.int64),
        scale_high=np.zeros(layout.num_chunks, dtype=np.int64),
        num_high=np.zeros(layout.num_chunks, dtype=np.int32),
        num_kept=np.zeros(layout.num_chunks, dtype=np.int32),
        proof=_PROOF,
    )


def _frozen(checked: CheckedBody) -> CheckedBody:
    for array in (checked.scale_low, checked.scale_high, checked.num_high, checked.num_kept):
        array.flags.writeable = False
    return checked


def _end_of(piece: Piece, layout: BodyLayout) -> int:
    """The offset in a body at which a piece ends."""
    index = piece.tensor_index
    if piece.last == layout.tensors[index].num_chunks:
        return layout.tensor_offsets[index + 1]
    return layout.tensor_offsets[index] + piece.last * layout.spec.chunk_bytes(
        layout.spec.chunk_size
    )


def _require_fine(verdict: Verdict, piece: Piece) -> None:
    if verdict.rule != kernels.FINE:
        raise CorruptBodyError(
            _CODES[verdict.rule], tensor_index=piece.tensor_index, chunk_index=verdict.chunk
        )


def _check_piece(checked: CheckedBody, piece: Piece) -> Verdict:
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
    return Verdict(int(rule), int(chunk))
