import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from shoal.compression import CorruptBodyError, check_body, reference, sum_bodies
from tests.property.test_compression_codec import layouts, seeds
from tests.unit.compression.bodies import random_body

# Compiling a kernel on its first call takes seconds.
unhurried = settings(deadline=None, max_examples=60)


def checked_bodies(layout, seed, count):
    for offset in range(count):
        try:
            yield check_body(random_body(layout, seed + offset), layout)
        except CorruptBodyError:
            # Every chunk of it was drawn empty.
            continue


@given(layouts(), seeds, st.integers(0, 5), st.randoms(use_true_random=False))
@unhurried
def test_sums_are_the_reference_s_in_any_order(layout, seed, count, random):
    bodies = list(checked_bodies(layout, seed, count))
    weights = [random.choice([0, 1, 2**15, random.randrange(2**15)]) for _ in bodies]
    caps = np.array(
        [random.choice([0, 2**10, 2**24, 2**40]) for _ in range(layout.num_chunks)], dtype=np.int64
    )
    unpacked = [reference.unpack_body(b.body, layout.sizes, layout.spec) for b in bodies]
    order = random.sample(range(len(bodies)), len(bodies))
    shuffled = sum_bodies([bodies[i] for i in order], [weights[i] for i in order], caps, layout)
    for t, total in enumerate(sum_bodies(bodies, weights, caps, layout)):
        start, stop = layout.chunk_starts[t : t + 2]
        expected = reference.sum_tensor(
            [u[t] for u in unpacked], weights, caps[start:stop].tolist()
        )
        assert total.positions.tolist() == sorted(expected)
        assert total.sums.tolist() == [expected[p][0] for p in sorted(expected)]
        assert total.counts.tolist() == [expected[p][1] for p in sorted(expected)]
        assert np.array_equal(total.positions, shuffled[t].positions)
        assert np.array_equal(total.sums, shuffled[t].sums)
        assert np.array_equal(total.counts, shuffled[t].counts)
