"""Puts a folder that `shoal init` has made into the bucket that a node.toml names.

    python docker/upload.py FOLDER NODE_TOML

Guarantees: objects are created, never replaced, so it can be run again; the manifest goes last. The
key of the bucket comes from SHOAL_S3_ACCESS_KEY_ID and SHOAL_S3_SECRET_ACCESS_KEY.
"""

import asyncio
import sys
from pathlib import Path

from shoal.node.config import load_node_config, read_s3_secrets
from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import ObjectExistsError
from shoal.storage.s3 import S3Store
from shoal.storage.s3_config import S3Config, S3Credentials


def bucket_of(node_toml: Path) -> S3Store:
    """The bucket of [store], writable."""
    store, found = load_node_config(node_toml).store, read_s3_secrets()
    if store.kind != "s3" or found is None:
        sys.exit(f'{node_toml}: [store] with kind = "s3" and a key in the environment expected')
    access_key, secret_key, session_token = found
    config = S3Config(
        endpoint_url=store.endpoint,
        bucket=store.bucket,
        prefix=store.prefix,
        region=store.region,
        lists_in_order=store.lists_in_order,
        allow_private=True,
    )
    key = S3Credentials(access_key=access_key, secret_key=secret_key, session_token=session_token)
    return S3Store(config, key)


async def keys_of(store: DirectoryStore) -> list[str]:
    """All keys, the manifest's at the end."""
    page = await store.list("")
    keys = list(page.keys)
    while page.next_after is not None:
        page = await store.list("", after=page.next_after)
        keys += page.keys
    return sorted(keys, key=lambda key: (key.endswith("/manifest"), key))


async def upload(folder: Path, bucket: S3Store) -> int:
    """Copies what is not there yet; gives the number of objects that it wrote."""
    store, num_written = DirectoryStore(folder), 0
    for key in await keys_of(store):
        data = await store.get(key, max_bytes=(await store.head(key)).num_bytes)
        try:
            await bucket.put(key, data)
        except ObjectExistsError:
            continue
        num_written += 1
    return num_written


def main() -> None:
    """The command line."""
    if len(sys.argv) != 3:
        sys.exit("upload.py FOLDER NODE_TOML")
    bucket = bucket_of(Path(sys.argv[2]))
    try:
        num_written = asyncio.run(upload(Path(sys.argv[1]), bucket))
    finally:
        bucket.close()
    sys.stdout.write(f"{num_written} objects written\n")


if __name__ == "__main__":
    main()
