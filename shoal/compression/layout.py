"""Where every tensor and every chunk of a body lies.

Guarantees that every element of every tensor is in exactly one chunk: a tensor is flattened row by
row and cut into pieces of `chunk_size`, the last of which may be short. Chunks are numbered through
all tensors. Does not hold values and allocates nothing that grows with the number of chunks.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.compression.binomials import binomial_table
from shoal.compression.errors import SpecMismatchError
from shoal.compression.kernels.limbs import BinomialTable
from shoal.compression.spec import CodecSpec


class TensorLayout:
    """One tensor's place in a body, in the form in which the kernels take it.

    Attributes:
        size: number of elements.
        num_chunks: number of chunks, 0 for a tensor without elements.
        geometry: (2, 5) int64, read-only; row 0 for every chunk but the last, row 1 for the last:
            elements, kept elements, bytes of the index code, of the value codes, of the chunk.
        largest_codes: (2, width) uint8, read-only; each row's largest index code, little-endian.
    """

    __slots__ = ("geometry", "largest_codes", "num_chunks", "size")

    def __init__(self, spec: CodecSpec, size: int) -> None:
        self.size = size
        self.num_chunks = -(-size // spec.chunk_size)
        last_len = size - (self.num_chunks - 1) * spec.chunk_size if size else spec.chunk_size
        lengths = (spec.chunk_size, last_len)
        self.geometry = np.array([_chunk_geometry(spec, n) for n in lengths], dtype=np.int64)
        self.largest_codes = _largest_codes(spec, lengths)
        self.geometry.flags.writeable = False

    def chunk_len(self, chunk_index: int) -> int:
        """Number of elements of one chunk of this tensor."""
        return int(self.geometry[int(chunk_index == self.num_chunks - 1), 0])


class BodyLayout:
    """How a body is laid out, by spec and tensor sizes; immutable, built once for a run.

    Attributes:
        spec: the codec's numbers.
        sizes: elements of each tensor, in the manifest's order.
        tensors: one `TensorLayout` for each tensor.
        num_chunks: chunks of all tensors together.
        body_bytes: exact length of a body.
        tensor_offsets: byte offset of each tensor in a body, and `body_bytes` as the last entry.
        chunk_starts: number of the first chunk of each tensor, and `num_chunks` as the last entry.

    Raises:
        SpecMismatchError: a size is not an integer in 0..2^32, or no tensor has an element.
    """

    __slots__ = (
        "body_bytes",
        "chunk_starts",
        "num_chunks",
        "sizes",
        "spec",
        "tensor_offsets",
        "tensors",
    )

    def __init__(self, spec: CodecSpec, sizes: Sequence[int]) -> None:
        self.spec = spec
        self.sizes = tuple(sizes)
        offsets, starts = [0], [0]
        shapes: dict[int, TensorLayout] = {}
        for size in self.sizes:
            offsets.append(offsets[-1] + spec.packed_bytes(size))
            if size not in shapes:
                shapes[size] = TensorLayout(spec, size)
            starts.append(starts[-1] + shapes[size].num_chunks)
        if not starts[-1]:
            raise SpecMismatchError("sizes: expected at least one tensor with elements, found none")
        self.tensors = tuple(shapes[size] for size in self.sizes)
        self.tensor_offsets = tuple(offsets)
        self.chunk_starts = tuple(starts)
        self.body_bytes = offsets[-1]
        self.num_chunks = starts[-1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BodyLayout):
            return NotImplemented
        return self is other or (self.spec == other.spec and self.sizes == other.sizes)

    def __hash__(self) -> int:
        return hash((self.spec, self.sizes))

    def table(self) -> BinomialTable:
        """The binomials for this spec's index codes, shared by all layouts with the same spec."""
        return binomial_table(self.spec.chunk_size, self.spec.k_per_chunk)


def _chunk_geometry(spec: CodecSpec, chunk_len: int) -> tuple[int, int, int, int, int]:
    return (
        chunk_len,
        spec.kept(chunk_len),
        spec.index_bytes(chunk_len),
        spec.value_bytes(chunk_len),
        spec.chunk_bytes(chunk_len),
    )


def _largest_codes(spec: CodecSpec, lengths: tuple[int, int]) -> npt.NDArray[np.uint8]:
    largest = [math.comb(n, spec.kept(n)) - 1 for n in lengths]
    width = max(spec.index_bytes(n) for n in lengths)
    raw = b"".join(code.to_bytes(width, "little") for code in largest)
    return np.frombuffer(raw, dtype=np.uint8).reshape(2, width)
