"""What a run fixes about its codec, and every length that follows from it.

Guarantees that the packed length of a chunk, of a tensor and so of a body is a pure function of the
spec and of the number of elements; nothing else in the project computes one. Does not touch values.

A chunk of n elements is, in this order and without gaps:

    index code   ceil(bits(C(n, k_n) - 1) / 8) bytes, one little-endian number
    value codes  ceil(value_bits * k_n / 8) bytes, lowest bits first
    scales       value_bits little-endian fp16 numbers

Source: SparseLoCo, arXiv 2508.15706 (top-k by chunk, 2-bit values); the index code is the
combinatorial number system (Knuth, TAOCP 7.2.1.3).
"""

import math
from dataclasses import dataclass
from typing import Final

from shoal.compression.errors import SpecMismatchError

# The table of binomials grows with chunk_size * k^2; at these bounds it is about 350 MB.
MAX_CHUNK_SIZE: Final = 4096
MAX_KEPT: Final = 512
SMALLEST_SCALE_BITS: Final = 0x0400
LARGEST_SCALE_BITS: Final = 0x7BFF


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecSpec:
    """The codec's four numbers; equal on all peers of a run.

    Attributes:
        chunk_size: elements in a full chunk, 1..4096.
        k_per_chunk: elements kept of a full chunk, 1..min(512, chunk_size).
        value_bits: 2 (sign and one of two scales) or 1 (sign and the chunk's only scale).
        max_scale_bits: largest scale as an fp16 bit pattern, 0x0400..0x7BFF; 0x3C00 is 1.0.

    Raises:
        SpecMismatchError: a number is not an integer in its range.
    """

    chunk_size: int = 4096
    k_per_chunk: int = 64
    value_bits: int = 2
    max_scale_bits: int = 0x3C00

    def __post_init__(self) -> None:
        _require("chunk_size", self.chunk_size, 1, MAX_CHUNK_SIZE)
        _require("k_per_chunk", self.k_per_chunk, 1, min(MAX_KEPT, self.chunk_size))
        _require("value_bits", self.value_bits, 1, 2)
        _require("max_scale_bits", self.max_scale_bits, SMALLEST_SCALE_BITS, LARGEST_SCALE_BITS)

    def kept(self, chunk_len: int) -> int:
        """Number of elements kept of a chunk: k_n = max(1, round(n * k / C)), halves up.

        Args:
            chunk_len: elements in the chunk, 1..chunk_size.

        Raises:
            SpecMismatchError: chunk_len is out of range.
        """
        _require("chunk_len", chunk_len, 1, self.chunk_size)
        rounded = (2 * chunk_len * self.k_per_chunk + self.chunk_size) // (2 * self.chunk_size)
        return max(1, rounded)

    def index_bytes(self, chunk_len: int) -> int:
        """Length in bytes of the index code of a chunk; 0 where there is only one index set.

        Args:
            chunk_len: elements in the chunk, 1..chunk_size.

        Raises:
            SpecMismatchError: chunk_len is out of range.
        """
        largest = math.comb(chunk_len, self.kept(chunk_len)) - 1
        return (largest.bit_length() + 7) // 8

    def value_bytes(self, chunk_len: int) -> int:
        """Length in bytes of the value codes of a chunk.

        Args:
            chunk_len: elements in the chunk, 1..chunk_size.

        Raises:
            SpecMismatchError: chunk_len is out of range.
        """
        return (self.value_bits * self.kept(chunk_len) + 7) // 8

    def chunk_bytes(self, chunk_len: int) -> int:
        """Length in bytes of a packed chunk.

        Args:
            chunk_len: elements in the chunk, 1..chunk_size.

        Raises:
            SpecMismatchError: chunk_len is out of range.
        """
        return self.index_bytes(chunk_len) + self.value_bytes(chunk_len) + 2 * self.value_bits

    def packed_bytes(self, num_elements: int) -> int:
        """Length in bytes of a packed tensor.

        Args:
            num_elements: elements of the tensor, 0 or more; 0 packs into nothing.

        Raises:
            SpecMismatchError: num_elements is negative or not an integer.
        """
        _require("num_elements", num_elements, 0, 2**32)
        num_full, short_len = divmod(num_elements, self.chunk_size)
        total = num_full * self.chunk_bytes(self.chunk_size) if num_full else 0
        return total + (self.chunk_bytes(short_len) if short_len else 0)


def _require(name: str, value: int, lowest: int, highest: int) -> None:
    # A bool is an int to Python, and a TOML file may hold anything.
    if type(value) is not int or not lowest <= value <= highest:
        raise SpecMismatchError(
            f"{name}: expected an integer in {lowest}..{highest}, got {value!r}"
        )
