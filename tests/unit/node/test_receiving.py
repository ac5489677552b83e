"""A payload is checked while it arrives: what ends early, what begins again, what is counted."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from shoal.compression import BodyLayout
from shoal.node.gatherer import RoundGather
from shoal.node.receiving import Receiving
from shoal.node.run_context import BodyChecker, make_spec
from shoal.protocol.errors import ErrorCode, PayloadError
from shoal.protocol.manifest import TensorSection
from shoal.protocol.payload import PayloadContext
from shoal.protocol.payload_header import PAYLOAD_PREFIX_BYTES
from shoal.protocol.record import build_record
from shoal.protocol.record_body import CountedPayload
from shoal.storage.errors import ObjectSizeError, StorageUnavailableError
from shoal.storage.filling import Arrived
from shoal.storage.memory import MemoryStore
from tests.support.bodies import body_like
from tests.support.contexts import announcement_for, context_of, id_of, payload_for
from tests.support.manifests import (
    VALIDATOR,
    first_head,
    peer,
    record_after,
    tiny_manifest,
)
from tests.support.virtual_time import run_virtual

ALICE = peer(1)
BLOCK_BYTES = 1 << 18
NUM_PATTERNS = 1200
Script = Callable[[memoryview, Arrived], Coroutine[Any, Any, None]]


class ScriptedStore(MemoryStore):
    """A store whose payloads arrive as a script says."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.num_reads = 0
        self.begun = asyncio.Event()

    async def get_into(self, key: str, room: memoryview, arrived: Arrived) -> None:
        self.num_reads += 1
        self.begun.set()
        await self.script(room, arrived)


@pytest.fixture(scope="module")
def manifest():
    """Payloads of some megabytes: more than one step of the check."""
    return tiny_manifest(tensors=(TensorSection(name="all", shape=(16 * 512 * NUM_PATTERNS,)),))


@pytest.fixture(scope="module")
def raw(manifest):
    pattern = body_like(BodyLayout(make_spec(manifest.codec), (16 * 512,)), 1)
    return payload_for(manifest, first_head(manifest), ALICE, pattern * NUM_PATTERNS)


@pytest.fixture
def receive(manifest, tmp_path):
    """Runs one download by a script; gives what it gave, and the store."""

    def run_one(script: Script) -> Any:
        async def body(loop):
            run = context_of(manifest, VALIDATOR, MemoryStore(), loop, tmp_path / "log")
            checker = BodyChecker(run.layout)
            context = PayloadContext(
                round_id=1,
                base_state=first_head(manifest).state,
                seen={},
                check_body=checker,
                start_body=checker.start,
            )
            receiving = Receiving(run, context)
            try:
                return await receiving.run(ScriptedStore(script), "payload")
            finally:
                run.log.close()

        return run_virtual(body)

    return run_one


async def send(room, arrived, data, start=0, end=None, pause_s=0.01):
    for at in range(start, len(data) if end is None else end, BLOCK_BYTES):
        block = data[at : at + BLOCK_BYTES]
        room[at : at + len(block)] = block
        arrived(at + len(block))
        await asyncio.sleep(pause_s)


def test_a_payload_that_arrives_is_verified_and_kept_as_it_came(receive, raw):
    assert len(raw) > 4 * (1 << 20)

    async def script(room, arrived):
        await send(room, arrived, raw)

    received = receive(script)
    assert received.payload.payload_id == id_of(raw)
    assert hashlib.sha256(received.raw).digest() == hashlib.sha256(raw).digest()
    assert received.raw.readonly
    assert received.payload.body.body.readonly


def test_a_bad_head_ends_the_download_after_one_step(receive, manifest, raw):
    bad = bytearray(raw)
    bad[PAYLOAD_PREFIX_BYTES - 1] ^= 1
    sent = []

    async def script(room, arrived):
        def note(num_bytes):
            sent.append(num_bytes)
            arrived(num_bytes)

        await send(room, note, bad)

    with pytest.raises(PayloadError) as caught:
        receive(script)
    assert caught.value.code is ErrorCode.E_SIG
    assert sent[-1] < len(raw) / 2


def test_bytes_that_arrive_again_are_the_ones_that_count(receive, raw):
    other = bytearray(raw)
    other[len(raw) // 3] ^= 1

    async def script(room, arrived):
        await send(room, arrived, other, end=len(raw) // 2)
        arrived(0)
        await send(room, arrived, raw)

    assert receive(script).payload.payload_id == id_of(raw)


def test_a_flipped_bit_anywhere_is_refused(receive, raw):
    for position in (PAYLOAD_PREFIX_BYTES, len(raw) // 2, len(raw) - 1):
        bad = bytearray(raw)
        bad[position] ^= 4

        async def script(room, arrived, bad=bad):
            await send(room, arrived, bad, pause_s=0.0)

        with pytest.raises(PayloadError) as caught:
            receive(script)
        assert caught.value.code is ErrorCode.E_BODY_HASH


def test_a_broken_transfer_is_nobody_s_fault(receive, raw):
    async def script(room, arrived):
        await send(room, arrived, raw, end=len(raw) // 2)
        raise StorageUnavailableError("gone", "payload")

    with pytest.raises(StorageUnavailableError):
        receive(script)

    async def cut(room, arrived):
        await send(room, arrived, raw, end=len(raw) // 2)
        raise ObjectSizeError("the rest is missing", "payload")

    with pytest.raises(ObjectSizeError):
        receive(cut)


def test_a_transfer_that_stands_still_ends_in_time(receive, raw):
    async def script(room, arrived):
        await send(room, arrived, raw, end=len(raw) // 2)
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        receive(script)


@pytest.mark.parametrize("stalls", [False, True])
def test_a_download_under_way_when_the_record_comes_is_used(manifest, raw, tmp_path, stalls):
    """A download that goes on is waited for; one that stands still is not, a copy is read."""

    async def body(loop):
        async def script(room, arrived):
            if store.num_reads > 1:
                room[:] = raw
                arrived(len(raw))
                return
            await send(room, arrived, raw, end=len(raw) // 2, pause_s=0.2)
            if stalls:
                await asyncio.Event().wait()
            await send(room, arrived, raw, start=len(raw) // BLOCK_BYTES // 2 * BLOCK_BYTES)

        store = ScriptedStore(script)
        run = context_of(manifest, VALIDATOR, store, loop, tmp_path / "log")
        gather = RoundGather(run, first_head(manifest))
        announced = announcement_for(manifest, first_head(manifest), ALICE, raw)
        await store.put(run.keys.published(1, ALICE.peer), announced)
        polling = asyncio.create_task(gather.poll())
        await store.begun.wait()
        entry = CountedPayload(peer=ALICE.peer, payload_id=id_of(raw), weight=1)
        record = record_after(first_head(manifest), manifest, (entry,))
        await store.put(run.keys.record(1), build_record(record, (VALIDATOR,)))
        await polling
        payload = await gather.fetch_counted(entry)
        assert payload.payload_id == id_of(raw)
        assert store.num_reads == (2 if stalls else 1)
        await gather.close()
        assert not gather._tasks
        run.log.close()

    run_virtual(body)
