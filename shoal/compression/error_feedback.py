"""Error feedback: what was not sent is kept, decayed, and tried again.

    stage     e <- b * e + D, then body = encode(quantise(top-k of e))
    commit    e <- e - decode(body), exactly what all others decode
    rollback  e stays: nothing that was learned is lost

Guarantees that stage changes nothing if it raises, and that commit subtracts what the bytes say,
because it decodes them. Holds one float32 for each parameter and the staged body. Does not know
when a body counts; the caller does.

Source: SparseLoCo, arXiv 2508.15706, lines 3 to 5. Decay first, then add; no (1 - b) factor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.compression.checking import check_chunks, tensor_bytes
from shoal.compression.errors import NonFiniteError, OutOfOrderError, SpecMismatchError
from shoal.compression.kernels import decode, encode
from shoal.compression.layout import BodyLayout
from shoal.compression.threads import Piece, pieces_of, run_pieces

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationStats:
    """How well a body represents what was selected; v a kept value, q what is sent for it.

    Attributes:
        relative_squared_error: sum (v - q)^2 / sum v^2; 0 if nothing was kept.
        mean_ratio: sum q v / sum v^2; 1 if nothing was kept.
        num_kept: kept values, those of empty chunks not counted; 0 if there is nothing to send.
        residual_norm: Euclidean norm of the residual after a commit of this body.
    """

    relative_squared_error: float
    mean_ratio: float
    num_kept: int
    residual_norm: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedBody:
    """A body that waits for its round's record.

    Attributes:
        body: packed bytes. All zero if stats.num_kept is 0: others would refuse it, so do not send.
        stats: how well it represents the accumulator.
    """

    body: bytes
    stats: QuantizationStats


class ErrorFeedback:
    """The residual of one peer, and the body that is staged, if one is.

    One caller at a time: nothing here is locked.

    Args:
        layout: the run's layout.
        decay: b, 0..1.
        num_threads: threads to use.

    Raises:
        SpecMismatchError: decay or num_threads is out of range.
    """

    def __init__(self, layout: BodyLayout, decay: float, *, num_threads: int = 1) -> None:
        if not 0.0 <= decay <= 1.0:
            raise SpecMismatchError(f"decay: expected 0..1, got {decay}")
        if num_threads < 1:
            raise SpecMismatchError(f"num_threads: expected 1 or more, got {num_threads}")
        self._layout = layout
        self._decay = np.float32(decay)
        self._num_threads = num_threads
        self._pieces = pieces_of(layout)
        self._residuals = [np.zeros(size, dtype=np.float32) for size in layout.sizes]
        self._staged: bytes | None = None

    @property
    def residuals(self) -> list[FloatArray]:
        """One (size,) float32 array for each tensor: the live arrays, not copies."""
        return self._residuals

    @property
    def staged_body(self) -> bytes | None:
        """The body that waits for commit or rollback, for a checkpoint; None if none does."""
        return self._staged

    def stage(self, pseudo_gradients: Sequence[FloatArray]) -> StagedBody:
        """Add the pseudo-gradients to the decayed residual, in place, and encode a body from it.

        Args:
            pseudo_gradients: one (size,) float32 contiguous array for each tensor, base - local.

        Raises:
            OutOfOrderError: a body is staged already.
            SpecMismatchError: arrays do not fit the layout.
            NonFiniteError: a sum would not be finite; the residual is as it was.
        """
        if self._staged is not None:
            raise OutOfOrderError("stage: expected commit or rollback of the staged body first")
        gradients = [_read_only(g) for g in self._fitting("pseudo_gradients", pseudo_gradients)]
        self._require_finite(gradients)
        body = np.zeros(self._layout.body_bytes, dtype=np.uint8)
        measured = np.zeros((self._layout.num_chunks, 5), dtype=np.float64)
        run_pieces(
            lambda piece: self._stage_piece(piece, gradients[piece.tensor_index], body, measured),
            self._pieces,
            self._num_threads,
        )
        self._staged = body.tobytes()
        return StagedBody(body=self._staged, stats=_summarize(measured))

    def commit(self) -> None:
        """Subtract the staged body from the residual: the round's record counts it.

        Raises:
            OutOfOrderError: nothing is staged.
        """
        staged = self._take("commit")
        run_pieces(
            lambda piece: self._subtract_piece(piece, staged), self._pieces, self._num_threads
        )

    def rollback(self) -> None:
        """Keep the whole accumulator as the residual: the body was not counted.

        Raises:
            OutOfOrderError: nothing is staged.
        """
        self._take("rollback")

    def restore(self, residuals: Sequence[FloatArray], staged_body: bytes | None) -> None:
        """Take over the state of a checkpoint.

        Args:
            residuals: one (size,) float32 contiguous array for each tensor; copied.
            staged_body: the body that was staged when the checkpoint was made, or None.

        Raises:
            SpecMismatchError: arrays do not fit the layout.
            NonFiniteError: a residual is not finite.
            CorruptBodyError: staged_body is not a body under this layout.
        """
        fitting = self._fitting("residuals", residuals)
        for tensor_index, residual in enumerate(fitting):
            if not np.isfinite(residual).all():
                raise NonFiniteError(tensor_index)
        if staged_body is not None:
            check_chunks(staged_body, self._layout)
        for own, residual in zip(self._residuals, fitting, strict=True):
            own[:] = residual
        self._staged = staged_body

    def _take(self, verb: str) -> bytes:
        if self._staged is None:
            raise OutOfOrderError(f"{verb}: expected a staged body, found none")
        staged, self._staged = self._staged, None
        return staged

    def _fitting(self, name: str, arrays: Sequence[FloatArray]) -> Sequence[FloatArray]:
        sizes = self._layout.sizes
        if len(arrays) != len(sizes):
            raise SpecMismatchError(f"{name}: expected {len(sizes)} arrays, got {len(arrays)}")
        for i, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
            fits = array.shape == (size,) and array.dtype == np.float32
            if not fits or not array.flags.c_contiguous:
                raise SpecMismatchError(
                    f"{name}[{i}]: expected a contiguous ({size},) float32 array, "
                    f"got {array.shape} {array.dtype}"
                )
        return arrays

    def _require_finite(self, gradients: Sequence[FloatArray]) -> None:
        def check(piece: Piece) -> bool:
            chunk_size = self._layout.spec.chunk_size
            part = slice(piece.first * chunk_size, piece.last * chunk_size)
            residual = self._residuals[piece.tensor_index][part]
            return encode.all_finite(residual, gradients[piece.tensor_index][part], self._decay)

        finite = run_pieces(check, self._pieces, self._num_threads)
        for piece, is_finite in zip(self._pieces, finite, strict=True):
            if not is_finite:
                raise NonFiniteError(piece.tensor_index)

    def _stage_piece(
        self,
        piece: Piece,
        gradient: FloatArray,
        body: npt.NDArray[np.uint8],
        measured: npt.NDArray[np.float64],
    ) -> None:
        layout, t = self._layout, piece.tensor_index
        encode.stage_chunks(
            self._residuals[t],
            self._residuals[t].view(np.int32),
            gradient,
            self._decay,
            layout.tensors[t].geometry,
            layout.tensors[t].num_chunks,
            piece.first,
            piece.last,
            layout.spec.value_bits,
            layout.spec.max_scale_bits,
            layout.table(),
            body[layout.tensor_offsets[t] : layout.tensor_offsets[t + 1]],
            measured[layout.chunk_starts[t] : layout.chunk_starts[t + 1]],
        )

    def _subtract_piece(self, piece: Piece, staged: bytes) -> None:
        layout, t = self._layout, piece.tensor_index
        most = (piece.last - piece.first) * layout.spec.k_per_chunk
        positions, values = np.empty(most, dtype=np.uint32), np.empty(most, dtype=np.float32)
        filled = decode.decode_chunks(
            tensor_bytes(staged, layout, t),
            layout.tensors[t].geometry,
            layout.tensors[t].num_chunks,
            piece.first,
            piece.last,
            layout.spec.value_bits,
            layout.table(),
            positions,
            values,
            0,
        )
        # Positions are all different, so that none is subtracted from twice or lost.
        self._residuals[t][positions[:filled]] -= values[:filled]


def _read_only(array: FloatArray) -> FloatArray:
    # numba compiles once for writable and once for read-only arrays; so there is only one kind.
    view = array.view()
    view.flags.writeable = False
    return view


def _summarize(measured: npt.NDArray[np.float64]) -> QuantizationStats:
    error, square, product, kept, total = (float(x) for x in measured.sum(axis=0))
    return QuantizationStats(
        relative_squared_error=error / square if square else 0.0,
        mean_ratio=product / square if square else 1.0,
        num_kept=int(kept),
        residual_norm=math.sqrt(max(0.0, total - square + error)),
    )
