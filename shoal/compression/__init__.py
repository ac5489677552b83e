"""Tensors to bytes and back. Pure: knows no peers, no files, no clock.

The way of the data: `CodecSpec` and `BodyLayout` fix every length; `ErrorFeedback` accumulates,
selects, quantises and encodes; `check_body` turns a peer's bytes into a `CheckedBody` or raises
`CorruptBodyError`; `sum_bodies` adds many of them up in integers; `dequantize` reads one.
"""

from shoal.compression.checking import ArrivingBody, CheckedBody, check_body
from shoal.compression.decoding import IntegerSum, dequantize, sum_bodies
from shoal.compression.error_feedback import ErrorFeedback, QuantizationStats, StagedBody
from shoal.compression.errors import (
    CompressionError,
    CorruptBodyError,
    NonFiniteError,
    OutOfOrderError,
    SpecMismatchError,
)
from shoal.compression.layout import BodyLayout
from shoal.compression.spec import CodecSpec

__all__ = [
    "ArrivingBody",
    "BodyLayout",
    "CheckedBody",
    "CodecSpec",
    "CompressionError",
    "CorruptBodyError",
    "ErrorFeedback",
    "IntegerSum",
    "NonFiniteError",
    "OutOfOrderError",
    "QuantizationStats",
    "SpecMismatchError",
    "StagedBody",
    "check_body",
    "dequantize",
    "sum_bodies",
]
