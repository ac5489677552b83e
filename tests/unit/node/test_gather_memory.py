"""What a gather of twenty holds: payloads as they came, and one sum; never twenty decoded."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from shoal.compression import BodyLayout, CodecSpec, check_body
from shoal.node.aggregate import aggregate
from shoal.node.gatherer import RoundGather
from shoal.node.run_context import make_spec
from shoal.protocol.manifest import OuterSection, TensorSection
from shoal.storage.memory import MemoryStore
from tests.support.bodies import body_like
from tests.support.contexts import announcement_for, context_of, payload_for
from tests.support.manifests import VALIDATOR, first_head, peer, tiny_manifest
from tests.support.virtual_time import run_virtual

NUM_PEERS = 20
NUM_PATTERNS = 100
SMALL_THINGS = 2 << 20
"""Events, tasks, keys and the like, bytes."""


@contextmanager
def peak_bytes() -> Iterator[Callable[[], int]]:
    """What is allocated at most at one time inside, above what was there before."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


class Copying(MemoryStore):
    """Gives a new copy of a payload, a second after it was asked."""

    num_open = 0
    most_open = 0

    async def get(self, key, *, max_bytes, start=0, length=None):
        data = await super().get(key, max_bytes=max_bytes, start=start, length=length)
        if "/payloads/" not in key:
            return data
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        copy = bytes(bytearray(data))
        await asyncio.sleep(1.0)
        self.num_open -= 1
        return copy


class Filling(Copying):
    """Puts it where the caller wants it."""

    async def get_into(self, key, room, arrived):
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        room[:] = await MemoryStore.get(self, key, max_bytes=room.nbytes)
        arrived(room.nbytes)
        await asyncio.sleep(1.0)
        self.num_open -= 1


@pytest.mark.parametrize(("store_class", "num_payloads"), [(Filling, 1), (Copying, 2)])
def test_an_open_download_holds_its_payload_and_at_most_one_copy(
    tmp_path, store_class, num_payloads
):
    manifest = tiny_manifest(tensors=(TensorSection(name="all", shape=(16 * 512 * NUM_PATTERNS,)),))
    head, layout = first_head(manifest), BodyLayout(make_spec(manifest.codec), (16 * 512,))
    check_body(body_like(layout, 1), layout)  # Kernels are compiled, tables are there.

    async def body(loop):
        store = store_class()
        run = context_of(manifest, VALIDATOR, store, loop, tmp_path / "log")
        for number in range(NUM_PEERS):
            raw = payload_for(manifest, head, peer(number), body_like(layout, 1) * NUM_PATTERNS)
            await store.put(run.keys.payload(1, peer(number).peer), raw)
            announcement = announcement_for(manifest, head, peer(number), raw)
            await store.put(run.keys.published(1, peer(number).peer), announcement)
        gather = RoundGather(run, head)
        with peak_bytes() as peak:
            polling = asyncio.create_task(gather.poll())
            await asyncio.sleep(5.0)
            found = peak()
        polling.cancel()
        await asyncio.wait({polling})
        run.log.close()
        assert len(gather.accepted) == store.most_open == NUM_PEERS
        # Beside its bytes a checked payload has four numbers for each chunk: 24 bytes here, where
        # a chunk has 16 values, which is more than the chunk itself.
        num_numbers = NUM_PEERS * run.layout.num_chunks * 24
        payloads = num_payloads * NUM_PEERS * manifest.payload_bytes
        assert payloads < found <= payloads + num_numbers + SMALL_THINGS

    run_virtual(body)


def test_summing_holds_one_sum_and_never_what_the_payloads_decode_to():
    layout = BodyLayout(CodecSpec(chunk_size=4096, k_per_chunk=64), (4096 * 256,))
    pattern = BodyLayout(layout.spec, (4096,))
    bodies = [check_body(body_like(pattern, i) * 256, layout) for i in range(NUM_PEERS)]
    outer = OuterSection()
    aggregate(bodies, layout, outer)  # Kernels are compiled, tables are there.
    with peak_bytes() as peak:
        result = aggregate(bodies, layout, outer)
        found = peak()
    num_touched = sum(len(part.positions) for part in result.sums)
    most_touched = NUM_PEERS * 64 * 256
    assert num_touched > most_touched // 2
    # Position, sum and count; packed bytes of all once more; six numbers of a chunk of each.
    allowed = most_touched * (4 + 8 + 1) + NUM_PEERS * (layout.body_bytes + 256 * 6 * 8)
    decoded = NUM_PEERS * 64 * 256 * (4 + 4)
    assert found < allowed + decoded // 4
