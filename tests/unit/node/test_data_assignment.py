import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.data.assignment import assigned_sequences

RUN, SEED, PEER = b"\1" * 32, b"\2" * 32, b"\3" * 32

GOLDEN = [[764, 936, 598], [996, 178, 224], [681, 707, 333], [165, 406, 730]]


def assigned(run=RUN, seed=SEED, peer=PEER, *, steps=4, batch=3, n=1000):
    return assigned_sequences(run, seed, peer, num_steps=steps, batch_size=batch, num_sequences=n)


def reference(num_wanted: int, num_sequences: int) -> list[int]:
    """Word by word, as the rule reads."""
    found: list[int] = []
    position = 0
    while len(found) < num_wanted:
        raw = hashlib.shake_256(b"shoal/assignment/1\0" + RUN + SEED + PEER).digest(
            8 * (position + 1)
        )
        word = int.from_bytes(raw[8 * position :], "little")
        position += 1
        if word < 2**64 - 2**64 % num_sequences:
            found.append(word % num_sequences)
    return found


def test_the_assignment_is_what_it_was():
    assert assigned().tolist() == GOLDEN
    assert assigned().dtype == np.int64


@given(
    num_sequences=st.sampled_from([1, 2, 3, 8628, 2**31, 2**62, 2**62 + 1, 2**63 - 1])
    | st.integers(1, 2**63 - 1),
    steps=st.integers(0, 5),
    batch=st.integers(1, 7),
)
def test_the_fast_form_is_the_rule(num_sequences, steps, batch):
    found = assigned(steps=steps, batch=batch, n=num_sequences)
    assert found.shape == (steps, batch)
    assert found.ravel().tolist() == reference(steps * batch, num_sequences)


@pytest.mark.parametrize("n", [1000, 2**62 + 1])
def test_more_steps_only_append(n):
    long = assigned(steps=50, n=n)
    for steps in (0, 1, 7, 49):
        assert np.array_equal(assigned(steps=steps, n=n), long[:steps])


def test_run_round_and_peer_each_change_it():
    other = b"\4" * 32
    variants = [assigned(), assigned(run=other), assigned(seed=other), assigned(peer=other)]
    assert len({variant.tobytes() for variant in variants}) == 4


def test_all_sequences_are_equally_likely():
    counts = np.bincount(assigned(steps=1000, batch=30, n=30).ravel(), minlength=30)
    # Chi-square with 29 degrees of freedom: 60 is beyond one in a thousand.
    assert ((counts - 1000) ** 2 / 1000).sum() < 60


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": b"short"},
        {"seed": b"\2" * 33},
        {"peer": b""},
        {"steps": -1},
        {"batch": 0},
        {"n": 0},
        {"n": 2**63},
    ],
)
def test_impossible_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=r"expected 32 each|num_sequences="):
        assigned(**wrong)
