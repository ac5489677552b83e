"""Errors of the codec: whose fault, and where.

    CompressionError                  root, never raised itself
    |- SpecMismatchError              ours: shapes, types, spec or arguments do not fit
    |- NonFiniteError                 ours: NaN or infinity in the accumulator
    |- OutOfOrderError                ours: stage, commit and rollback in an order without meaning
    `- CorruptBodyError               a peer's: the received bytes are not a body

Guarantees that every failure of this package is one of these, and that bytes from a peer can cause
nothing but `CorruptBodyError`. Does not log, and does not know which peer sent the bytes.
"""

from typing import Final, Literal, TypeAlias

CorruptionCode: TypeAlias = Literal[
    "E_BODY_LEN",
    "E_SCALE_NONFINITE",
    "E_SCALE_SIGN",
    "E_SCALE_SUBNORMAL",
    "E_SCALE_RANGE",
    "E_SCALE_ORDER",
    "E_EMPTY_CHUNK",
    "E_PADDING",
    "E_INDEX_RANGE",
    "E_ALL_ZERO",
]

EXPLANATIONS: Final[dict[CorruptionCode, str]] = {
    "E_BODY_LEN": "the body has another length than spec and sizes give",
    "E_SCALE_NONFINITE": "a scale is NaN or infinite",
    "E_SCALE_SIGN": "a scale has its sign bit set",
    "E_SCALE_SUBNORMAL": "a scale is subnormal",
    "E_SCALE_RANGE": "a scale is above the largest that the spec allows",
    "E_SCALE_ORDER": "the two scales and the level bits are not in canonical form",
    "E_EMPTY_CHUNK": "a chunk with a zero scale has other bytes that are not zero",
    "E_PADDING": "the bits after the last value code are not zero",
    "E_INDEX_RANGE": "the index code is not the number of any index set",
    "E_ALL_ZERO": "every chunk is empty",
}


class CompressionError(Exception):
    """Root of the errors of `shoal.compression`; never raised itself."""


class SpecMismatchError(CompressionError):
    """Arguments do not fit each other, the spec or the layout: a bug or a configuration of ours."""


class OutOfOrderError(CompressionError):
    """A residual was staged twice, or committed or rolled back without having been staged."""


class NonFiniteError(CompressionError):
    """The accumulator of one tensor would hold NaN or infinity.

    Attributes:
        tensor_index: position of the tensor in the layout.
    """

    def __init__(self, tensor_index: int) -> None:
        super().__init__(
            f"tensor {tensor_index}: decay * residual + pseudo-gradient holds NaN or infinity"
        )
        self.tensor_index = tensor_index


class CorruptBodyError(CompressionError):
    """Received bytes are not a body under this layout.

    Attributes:
        code: name of the rule that was broken; one of `CorruptionCode`.
        tensor_index: tensor in which, or None if the rule concerns the body as a whole.
        chunk_index: chunk of that tensor, or None likewise.
    """

    def __init__(
        self,
        code: CorruptionCode,
        *,
        tensor_index: int | None = None,
        chunk_index: int | None = None,
        detail: str = "",
    ) -> None:
        where = "" if tensor_index is None else f" (tensor {tensor_index}, chunk {chunk_index})"
        super().__init__(f"{code}: {EXPLANATIONS[code]}{where}{detail}")
        self.code: CorruptionCode = code
        self.tensor_index = tensor_index
        self.chunk_index = chunk_index
