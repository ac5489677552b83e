"""What else could select the top k of each chunk, on one matrix of 16.8 million parameters."""

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.compression.measuring import rate_row, time_runs
from benchmarks.compression.speed import SIZE, SPEED_HEADER, pseudo_gradient
from shoal.compression.kernels.compiler import kernel
from shoal.compression.kernels.select import select_chunk

Bits = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

CHUNK = 4096
KEPT = 64
RUNS = 3


@kernel
def select_all(bits: Bits, indices: Indices) -> None:
    """Ours, on all chunks."""
    maxima, magnitudes = np.empty(CHUNK, np.int32), np.empty(CHUNK, np.int32)
    lanes, candidates = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    for c in range(indices.shape[0]):
        chunk = bits[c * CHUNK : (c + 1) * CHUNK]
        select_chunk(chunk, KEPT, maxima, lanes, magnitudes, candidates, indices[c])


@kernel
def select_by_histogram(bits: Bits, indices: Indices) -> None:
    """A histogram of exponent and three bits of fraction, then a sort of the lowest bin."""
    counts = np.empty(2048, np.int64)
    for c in range(indices.shape[0]):
        chunk = bits[c * CHUNK : (c + 1) * CHUNK]
        counts[:] = 0
        for i in range(CHUNK):
            counts[(chunk[i] & 0x7FFFFFFF) >> 20] += 1
        above, lowest = 0, 2047
        while above + counts[lowest] < KEPT:
            above += counts[lowest]
            lowest -= 1
        tied = np.empty(counts[lowest], np.int64)
        num_tied, position = 0, 0
        for i in range(CHUNK):
            magnitude = np.int64(chunk[i] & 0x7FFFFFFF)
            if magnitude >> 20 == lowest:
                tied[num_tied] = magnitude << 12 | (CHUNK - 1 - i)
                num_tied += 1
            elif magnitude >> 20 > lowest:
                indices[c, position] = i
                position += 1
        tied.sort()
        for t in range(KEPT - above):
            indices[c, position] = CHUNK - 1 - (tied[num_tied - 1 - t] & (CHUNK - 1))
            position += 1
        indices[c].sort()


def select_with_numpy(values: npt.NDArray[np.float32]) -> Indices:
    """numpy.argpartition, which leaves ties to chance."""
    magnitudes = np.abs(values.reshape(-1, CHUNK))
    found = np.argpartition(magnitudes, CHUNK - KEPT, axis=1)[:, CHUNK - KEPT :]
    return np.sort(found, axis=1)


def select_with_torch(values: npt.NDArray[np.float32]) -> Indices:
    """torch.topk, which leaves ties to chance."""
    magnitudes = torch.from_numpy(values).view(-1, CHUNK).abs()
    indices: Indices = magnitudes.topk(KEPT, dim=1, sorted=False).indices.sort(dim=1).values.numpy()
    return indices


def print_alternatives() -> None:
    """Print a row for each way; all must agree where no two magnitudes are equal."""
    values = pseudo_gradient(0)
    bits, num_chunks = values.view(np.int32), SIZE // CHUNK
    ours, theirs = (np.empty((num_chunks, KEPT), dtype=np.int64) for _ in range(2))
    select_all(bits[:CHUNK], ours[:1])
    select_by_histogram(bits[:CHUNK], theirs[:1])
    torch.set_num_threads(1)
    print("Selection alone, one thread:\n")
    print(SPEED_HEADER)
    for name, work in (
        ("numba, lanes (ours)", lambda: select_all(bits, ours)),
        ("numba, histogram", lambda: select_by_histogram(bits, theirs)),
        ("numpy.argpartition", lambda: select_with_numpy(values)),
        ("torch.topk", lambda: select_with_torch(values)),
    ):
        print(rate_row(name, SIZE, time_runs(work, runs=RUNS), "parameters"))
    for other in (theirs, select_with_numpy(values), select_with_torch(values)):
        chosen = np.take_along_axis(np.abs(values.reshape(-1, CHUNK)), other, axis=1)
        expected = np.take_along_axis(np.abs(values.reshape(-1, CHUNK)), ours, axis=1)
        assert np.array_equal(np.sort(chosen, axis=1), np.sort(expected, axis=1))
    print()
