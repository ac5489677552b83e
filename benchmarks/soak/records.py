"""The run's records, read from its bucket and checked link by link: what really counted.

Guarantees: nothing here comes from a node's own word.
"""

from shoal.node.store_keys import StoreKeys
from shoal.protocol.chain import genesis_head
from shoal.protocol.manifest import RunManifest
from shoal.protocol.record import VerifiedRecord, read_record
from shoal.storage.errors import ObjectNotFoundError
from shoal.storage.s3 import S3Store


async def read_chain(manifest: RunManifest, store: S3Store) -> list[VerifiedRecord]:
    """All records from round 1 on.

    Raises:
        StorageError: the bucket cannot be read.
        RemoteProtocolError: a record is none.
    """
    head = genesis_head(manifest.run_id, manifest.genesis.root)
    keys, rules = StoreKeys(manifest.run_id), manifest.record_rules()
    records: list[VerifiedRecord] = []
    while True:
        try:
            raw = await store.get(keys.record(head.round_id + 1), max_bytes=rules.max_bytes)
        except ObjectNotFoundError:
            return records
        records.append(read_record(raw, rules, head))
        head = records[-1].head
