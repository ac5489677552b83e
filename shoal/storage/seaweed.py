"""Starts and stops a real S3 server on this machine: SeaweedFS, from its wheel on PyPI.

For tests, demos and small runs. Guarantees: it listens on 127.0.0.1 only and reports to nobody;
when it is handed out, an object has been written and read; it takes no keys from this process's
environment; it ends with the context, and is killed by the kernel when the thread that started it
dies for any reason. What it has stored stays in its folder and is there at the next start.

Linux only, like the wheel. Does not create buckets later on.
"""

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal.storage.errors import StorageError
from shoal.storage.s3 import S3Config, S3Credentials, S3Limits, S3Store
from shoal.storage.seaweed_process import (
    CONFIG_NAME,
    DATA_NAME,
    HOST,
    LOG_NAME,
    PORT_NAMES,
    Process,
    SeaweedStartError,
    find_program,
    free_ports,
    start_process,
    stop_process,
)

__all__ = ["BucketKeys", "SeaweedServer", "SeaweedStartError"]

# Long: a server that has ended is noticed at once, and a machine with other work is slow.
READY_S: Final = 90.0

_NUM_TRIES: Final = 3
_POLL_S: Final = 0.1
_PROBE: Final = "shoal-ready/probe"


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketKeys:
    """The two keys of a bucket.

    Attributes:
        writer: May read, list, write and delete in this bucket and in no other.
        reader: May read and list in this bucket and in no other.
        folder: The writer may read, write and delete below this folder and nowhere else, and may
            not list; empty: in the whole bucket.
    """

    writer: S3Credentials
    reader: S3Credentials
    folder: str = ""

    @classmethod
    def random(cls, folder: str = "") -> "BucketKeys":
        """Make new keys.

        Args:
            folder: What the writer is confined to; empty: nothing.

        Returns:
            Keys that nobody else has.
        """
        return cls(writer=_random_key(), reader=_random_key(), folder=folder)


class SeaweedServer:
    """A server that runs; made by `start`.

    Attributes:
        endpoint_url: Where it answers.
        pid: Its process.
        admin: May do everything.
        keys: The keys by bucket.
        log: What it writes.
    """

    def __init__(
        self,
        port: int,
        pid: int,
        admin: S3Credentials,
        keys: Mapping[str, BucketKeys],
        log: Path,
    ) -> None:
        self.endpoint_url = f"http://{HOST}:{port}"
        self.pid = pid
        self.admin = admin
        self.keys = dict(keys)
        self.log = log

    def config(self, bucket: str, *, prefix: str = "") -> S3Config:
        """Say where a bucket is.

        Args:
            bucket: Its name.
            prefix: A folder in it; empty: its top.

        Returns:
            The configuration for a store.
        """
        return S3Config(
            endpoint_url=self.endpoint_url,
            bucket=bucket,
            prefix=prefix,
            # It lists folder by folder, and of writers that join parts at once several succeed.
            lists_in_order=False,
            joins_once=False,
            allow_loopback=True,
        )

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        folder: Path,
        buckets: Mapping[str, BucketKeys],
        *,
        public: Collection[str] = (),
        ready_s: float = READY_S,
    ) -> AsyncIterator["SeaweedServer"]:
        """Run a server until the context ends.

        Args:
            folder: Where its data, configuration and log are; made if it is missing.
            buckets: Which buckets it has, at least one, and their keys.
            public: Those of them that anybody may read and list.
            ready_s: How long it may take until an object can be written and read.

        Yields:
            The server, ready.

        Raises:
            SeaweedStartError: It is not installed, no ports are free, or it did not become ready.
            ValueError: No bucket, or a public one that is not among them.
        """
        if not buckets or not set(public) <= set(buckets):
            raise ValueError("at least one bucket expected, and public ones among them")
        program = find_program()
        admin = _random_key()
        _prepare(folder, _identities(admin, buckets, public))
        for number in range(_NUM_TRIES):
            ports = dict(zip(PORT_NAMES, free_ports(len(PORT_NAMES)), strict=True))
            process = start_process(program, folder, list(buckets), ports)
            server = cls(ports["s3"], process.pid, admin, buckets, folder / LOG_NAME)
            try:
                # Somebody may have taken a port between the look and the start.
                is_last = number == _NUM_TRIES - 1
                if await server._is_ready(process, ready_s, may_end=not is_last):
                    yield server
                    return
            finally:
                await asyncio.to_thread(stop_process, process)

    async def _is_ready(self, process: Process, ready_s: float, *, may_end: bool) -> bool:
        """Write and read an object in every bucket until that works; False if the server ended."""
        ends_at_s = time.monotonic() + ready_s
        stores = [
            S3Store(
                self.config(name, prefix=keys.folder),
                keys.writer,
                limits=S3Limits(deadline_s=2, num_threads=1),
            )
            for name, keys in self.keys.items()
        ]
        failure = ""
        try:
            while time.monotonic() < ends_at_s:
                if process.poll() is not None:
                    if may_end:
                        return False
                    raise SeaweedStartError(f"the server ended at once; see {self.log}")
                try:
                    for store in stores:
                        await _probe(store)
                except StorageError as error:
                    failure = error.message
                    await asyncio.sleep(_POLL_S)
                else:
                    return True
        finally:
            for store in stores:
                store.close()
        raise SeaweedStartError(f"not ready within {ready_s:g} s ({failure}); see {self.log}")


async def _probe(store: S3Store) -> None:
    text = secrets.token_bytes(16)
    await store.put(_PROBE, text, overwrite=True)
    if await store.get(_PROBE, max_bytes=len(text)) != text:
        raise SeaweedStartError("another object was read than had been written")
    await store.delete(_PROBE)


def _identities(
    admin: S3Credentials, buckets: Mapping[str, BucketKeys], public: Collection[str]
) -> str:
    def identity(name: str, key: S3Credentials, actions: list[str]) -> dict[str, Any]:
        secret = {"accessKey": key.access_key, "secretKey": key.secret_key}
        return {"name": name, "credentials": [secret], "actions": actions}

    found = [identity("admin", admin, ["Admin", "Read", "List", "Tagging", "Write"])]
    for bucket, keys in buckets.items():
        reads = [f"Read:{bucket}", f"List:{bucket}"]
        writes = [f"Write:{bucket}", f"Tagging:{bucket}"]
        if keys.folder:
            verbs = ("Read", "Write")
            confined = [f"{verb}:{bucket}/{keys.folder}/*" for verb in verbs]
            found.append(identity(f"{bucket}-writer", keys.writer, confined))
        else:
            found.append(identity(f"{bucket}-writer", keys.writer, reads + writes))
        found.append(identity(f"{bucket}-reader", keys.reader, reads))
    if public:
        allowed = [f"{verb}:{bucket}" for bucket in public for verb in ("Read", "List")]
        found.append({"name": "anonymous", "actions": allowed})
    return json.dumps({"identities": found}, indent=1)


def _prepare(folder: Path, identities: str) -> None:
    (folder / DATA_NAME).mkdir(parents=True, exist_ok=True)
    path = folder / CONFIG_NAME
    path.unlink(missing_ok=True)
    file_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file_fd, "w", encoding="utf-8") as file:
        file.write(identities)


def _random_key() -> S3Credentials:
    return S3Credentials(access_key=secrets.token_hex(10), secret_key=secrets.token_hex(20))
