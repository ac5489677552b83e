"""Speed and memory of both directions, on one matrix of 16.8 million parameters."""

import hashlib

import numpy as np
import numpy.typing as npt

from benchmarks.compression.measuring import peak_bytes, rate_row, time_runs
from shoal.compression import (
    BodyLayout,
    CheckedBody,
    CodecSpec,
    ErrorFeedback,
    IntegerSum,
    check_body,
    sum_bodies,
)

SIZE = 4096 * 4096
NUM_PEERS = 20
RUNS = 7
NUM_THREADS = 2
DECAY = 0.95

SPEED_HEADER = (
    "| what | median | range of runs | M per core second | target |\n|---|---|---|---|---|"
)
MEMORY_HEADER = (
    "| what | peak beyond inputs and outputs, bytes per parameter | target |\n|---|---|---|"
)


def pseudo_gradient(seed: int) -> npt.NDArray[np.float32]:
    """(SIZE,) float32, normal."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(SIZE, dtype=np.float32) * np.float32(1e-2)


def print_speed_and_memory(value_bits: int) -> None:
    """Print rows of both directions for one layout of the values."""
    layout = BodyLayout(CodecSpec(value_bits=value_bits), [SIZE])
    bodies = _print_compressing(layout)
    _print_summing(layout, bodies)


def _print_compressing(layout: BodyLayout) -> list[bytes]:
    name = f"{layout.spec.value_bits} bits, {NUM_THREADS} threads"
    feedback = ErrorFeedback(layout, DECAY, num_threads=NUM_THREADS)
    gradient = pseudo_gradient(0)
    feedback.stage([gradient])
    feedback.commit()

    def stage_again() -> None:
        feedback.stage([gradient])

    feedback.stage([gradient])
    taken = time_runs(stage_again, runs=RUNS, before=feedback.rollback)
    print(SPEED_HEADER)
    print(
        rate_row(f"residual and pseudo-gradient to bytes, {name}", SIZE, taken, "parameters", "400")
    )

    def restage() -> None:
        feedback.rollback()
        feedback.stage([gradient])

    staged = peak_bytes(restage, lambda: 0)
    taken = time_runs(feedback.commit, runs=1)
    print(rate_row(f"commit, {name}", SIZE, taken, "parameters"))
    print(f"\n{MEMORY_HEADER}\n| stage, {name} | {staged / SIZE:.3f} | 2 |\n")
    bodies = []
    for seed in range(NUM_PEERS):
        peer = ErrorFeedback(layout, DECAY, num_threads=NUM_THREADS)
        bodies.append(peer.stage([pseudo_gradient(seed)]).body)
    return bodies


def _print_summing(layout: BodyLayout, bodies: list[bytes]) -> None:
    name = f"{layout.spec.value_bits} bits, {NUM_PEERS} peers, {NUM_THREADS} threads"
    digests = [hashlib.sha256(body).digest() for body in bodies]
    caps = np.full(layout.num_chunks, 2**24, dtype=np.int64)
    results: list[list[IntegerSum]] = []

    def check() -> list[CheckedBody]:
        checked = []
        for body, digest in zip(bodies, digests, strict=True):
            assert hashlib.sha256(body).digest() == digest
            checked.append(check_body(body, layout, num_threads=NUM_THREADS))
        return checked

    def check_and_sum() -> None:
        weights = [2**15] * NUM_PEERS
        results[:] = [sum_bodies(check(), weights, caps, layout, num_threads=NUM_THREADS)]

    def output_bytes() -> int:
        (total,) = results[0]
        return total.positions.nbytes + total.sums.nbytes + total.counts.nbytes

    check_and_sum()
    amount = SIZE * NUM_PEERS
    print(SPEED_HEADER)
    taken = time_runs(check, runs=RUNS)
    print(rate_row(f"SHA-256 and check, {name}", amount, taken, "parameter peers"))
    taken = time_runs(check_and_sum, runs=RUNS, before=results.clear)
    print(
        rate_row(
            f"SHA-256, check, decode and sum, {name}", amount, taken, "parameter peers", "1,000"
        )
    )
    results.clear()
    peak = peak_bytes(check_and_sum, output_bytes)
    print(f"\n{MEMORY_HEADER}\n| check and sum, {name} | {peak / SIZE:.3f} | 2 |\n")
