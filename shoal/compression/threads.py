"""Cuts a body's chunks into pieces of work and runs them on threads.

Guarantees that every chunk of every tensor is in exactly one piece and that results come back in
order. The kernels release the GIL, so plain threads are enough; they also avoid the traps of the
thread pool in numba, which must neither be forked nor be entered from two threads at once.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

from shoal.compression.errors import SpecMismatchError
from shoal.compression.layout import BodyLayout

# About 4 M elements: some milliseconds, so that starting a piece costs nothing beside it.
CHUNKS_PER_PIECE: Final = 1024

Result = TypeVar("Result")


class Piece(NamedTuple):
    """Chunks first..last - 1, numbered within one tensor.

    Attributes:
        tensor_index: the tensor.
        first: first chunk.
        last: chunk after the last.
    """

    tensor_index: int
    first: int
    last: int


def pieces_of_tensor(layout: BodyLayout, tensor_index: int) -> list[Piece]:
    """All pieces of one tensor, in order; they depend on the layout only."""
    num_chunks = layout.tensors[tensor_index].num_chunks
    return [
        Piece(tensor_index, first, min(first + CHUNKS_PER_PIECE, num_chunks))
        for first in range(0, num_chunks, CHUNKS_PER_PIECE)
    ]


def pieces_of(layout: BodyLayout) -> list[Piece]:
    """All pieces of a body, in body order."""
    return [piece for t in range(len(layout.sizes)) for piece in pieces_of_tensor(layout, t)]


def run_pieces(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], num_threads: int
) -> list[Result]:
    """Do the work on every piece and return the results in the order of the pieces.

    Args:
        work: called once for each piece, possibly from another thread.
        pieces: what to work on.
        num_threads: 1 or more; 1 starts no thread.

    Raises:
        SpecMismatchError: num_threads is below 1.
        Exception: the first one that `work` raised, in the order of the pieces.
    """
    if num_threads < 1:
        raise SpecMismatchError(f"num_threads: expected 1 or more, got {num_threads}")
    if num_threads == 1 or len(pieces) < 2:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        return list(pool.map(work, pieces))
