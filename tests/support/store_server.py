"""The S3 server of a test or a soak, which can be killed and started again with what it stored."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from shoal.storage.seaweed import BucketKeys, SeaweedServer


class StoreServer:
    """SeaweedFS with keys for every bucket; its port changes with every start."""

    def __init__(self, folder: Path, buckets: list[str]) -> None:
        self.keys = {bucket: BucketKeys.random() for bucket in buckets}
        self._folder = folder
        self._held = AsyncExitStack()
        self.server: SeaweedServer

    @classmethod
    @asynccontextmanager
    async def running(cls, folder: Path, buckets: list[str]) -> AsyncIterator["StoreServer"]:
        """Runs one until the context ends."""
        store = cls(folder, buckets)
        await store.start()
        try:
            yield store
        finally:
            await store._end()

    async def start(self) -> None:
        """Starts it (again); returns when objects can be written and read."""
        await self._end()
        running = SeaweedServer.start(self._folder, self.keys, public=list(self.keys))
        self.server = await self._held.enter_async_context(running)

    async def kill(self) -> int:
        """kill -9; gives the process that was hit, once it is gone."""
        pid = self.server.pid
        os.kill(pid, signal.SIGKILL)
        # Reaps it as well.
        await self._end()
        return pid

    async def _end(self) -> None:
        """Ends the process if there is one; waits for nothing but that."""
        held, self._held = self._held, AsyncExitStack()
        await held.aclose()

    @property
    def port(self) -> int:
        """Where it answers now."""
        return urlsplit(self.server.endpoint_url).port or 0


async def answers(port: int) -> bool:
    """Whether anybody listens on a port of this machine."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
