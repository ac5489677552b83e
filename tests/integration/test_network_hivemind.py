"""What the one door to hivemind sets right, against hivemind itself.

In a process of its own: importing hivemind changes torch for the whole process.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.node.network.client import NetworkClient
from shoal.node.network.dht_records import ATTENDING_KIND, record_key
from shoal.node.network.messages import Start
from shoal.protocol.announcement import (
    Announcement,
    AnnouncementType,
    Where,
    build_announcement,
)
from shoal.protocol.identity import from_seed

pytestmark = pytest.mark.slow

RUN_ID = bytes(range(32))

PROGRAM = """
import time

from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer

from shoal.node.network.dht_records import location
from shoal.node.network.libp2p import _Storage, _Validator

now_s = time.time()
key = DHTID.generate(b"k" * 32)
assert key.to_bytes() == location(b"k" * 32), "our location is hivemind's"

# A shorter life is refused, and the longer one stays.
storage = _Storage()
assert storage.store(key, b"long", now_s + 60)
assert not storage.store(key, b"short", now_s + 0.2)
assert not storage.store(key, b"equal", now_s + 60)
assert not storage.store(key, b"part", now_s + 90, subkey=b"s")
assert not storage.store(key, b"over", now_s - 1)
time.sleep(0.3)
assert storage.get(key).value == b"long", "it outlives the shorter one"
assert storage.store(key, b"longer", now_s + 61)

asked = []
validator = _Validator(lambda *record: asked.append(record) or True)
packed = MSGPackSerializer.dumps(b"v" * 300)
good = DHTRecord(key.to_bytes(), DHTProtocol.IS_REGULAR_VALUE, packed, now_s + 1)
assert validator.validate(good)
assert asked == [(key.to_bytes(), b"v" * 300, now_s + 1)]
for subkey, value in (
    (DHTProtocol.IS_DICTIONARY, packed),
    (MSGPackSerializer.dumps("s"), packed),
    (DHTProtocol.IS_REGULAR_VALUE, b"raw"),
    (DHTProtocol.IS_REGULAR_VALUE, MSGPackSerializer.dumps([b"v"])),
    (DHTProtocol.IS_REGULAR_VALUE, MSGPackSerializer.dumps(DictionaryDHTValue())),
):
    assert not validator.validate(DHTRecord(key.to_bytes(), subkey, value, now_s + 1))
assert len(asked) == 1
assert validator.priority >= 10
print("done")
"""

# The raw DHT of a node without our client: what it accepts is what the process accepts.
INTRUDER = """
import asyncio, sys, time

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P

async def main():
    p2p = await P2P.create(
        initial_peers=[sys.argv[1]], use_relay=False, nat_port_map=False, auto_nat=False
    )
    node = await DHTNode.create(p2p=p2p, initial_peers=[sys.argv[1]], cache_on_store=False)
    key, good = bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
    soon = time.time() + 30
    far = time.time() + 3600
    peer = next(iter(node.protocol.routing_table.uid_to_peer_id.values()))

    async def offer(value, expiry, **subkey):
        packed = node.protocol.serializer.dumps(value)
        [taken] = await node.protocol.call_store(
            peer, [DHTID.generate(key)], [packed], [expiry], **subkey
        )
        return taken

    answers = [
        await offer(b"x" * 100, soon),
        await offer(b"x" * 100_000, soon),
        await offer([1, 2], soon),
        await offer(good, far),
        await offer(good, soon, subkeys=["s"]),
        await offer(good, soon),
    ]
    print(answers, flush=True)
    await node.shutdown()
    await p2p.shutdown()

asyncio.run(main())
"""


def test_the_door_sets_right_what_hivemind_gets_wrong() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr


def test_an_intruder_with_plain_hivemind_places_nothing_but_a_peers_own_record(
    tmp_path: Path,
) -> None:
    asyncio.run(_intrude(tmp_path))


async def _intrude(folder: Path) -> None:
    who = from_seed(bytes(32))
    said = build_announcement(
        who,
        Announcement(
            run_id=RUN_ID,
            round_id=1,
            peer_key=who.peer.key,
            type=AnnouncementType.ATTENDING,
            sequence=1,
            where=Where(provider="p2p"),
        ),
    )
    options = Start(folder=str(folder), run_id=RUN_ID, round_ms=60_000, allow_private=True)
    async with NetworkClient(options, from_seed(b"n" * 32)) as network:
        status = await network.status()
        place = f"{status.addresses[0]}/p2p/{status.peer_id}"
        key = record_key(RUN_ID, who.peer, ATTENDING_KIND)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            INTRUDER,
            place,
            key.hex(),
            said.hex(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        # Only the last one is signed by its peer, of this run, for this key and short-lived.
        assert out == b"[False, False, False, False, False, True]\n", errors.decode()
        assert await network.look_up(who.peer, ATTENDING_KIND) == said
        # What is no single short value does not even come to the rules.
        refused = dict((await network.status()).refused)
        # A busy node sends the good one twice, and the second time it is no news.
        refused.pop("E_ROLLBACK", None)
        assert refused == {"E_LEN": 1, "E_DHT_EXPIRY_FAR": 1}
        assert network.num_starts == 1
