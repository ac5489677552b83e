"""Cutting objects into parts that travel at the same time.

Guarantees: when one part fails for good, the others stop at their next block, all threads have
ended when the failure is raised, and it is the first failure that is raised. Sending copies no
bytes.
"""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from shoal.storage.errors import StorageError
from shoal.storage.s3_answers import GiveUpError, ReplacedError
from shoal.storage.s3_clock import CallClock
from shoal.storage.s3_config import MAX_NUM_PARTS, S3Limits

T = TypeVar("T")


class BodyReader:
    """Reads a buffer as a file does, without copying it.

    Args:
        data: The bytes.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def __len__(self) -> int:
        return self._data.nbytes

    def read(self, num_bytes: int = -1, /) -> memoryview:
        """Give the next bytes.

        Args:
            num_bytes: The most of them; below 0: all.

        Returns:
            They; none at the end.
        """
        end = len(self) if num_bytes < 0 else min(self._at + num_bytes, len(self))
        block = self._data[self._at : end]
        self._at = end
        return block

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place.

        Args:
            offset: Bytes from where `whence` says.
            whence: 0: the beginning, 1: here, 2: the end.

        Returns:
            The new place.
        """
        base = (0, self._at, len(self))[whence]
        self._at = min(max(base + offset, 0), len(self))
        return self._at

    def tell(self) -> int:
        """Give the place of the next byte.

        Returns:
            Bytes from the beginning.
        """
        return self._at


def body_parameters(data: memoryview) -> dict[str, Any]:
    """Give the parameters of a request that carries bytes.

    MD5 is the one check that every provider makes; it finds accidents, nobody relies on it against
    an attacker.

    Args:
        data: The bytes.

    Returns:
        Body, length and MD5 under their S3 names.
    """
    md5 = hashlib.md5(data, usedforsecurity=False).digest()
    return {
        "Body": BodyReader(data),
        "ContentLength": data.nbytes,
        "ContentMD5": base64.b64encode(md5).decode("ascii"),
    }


def part_size(num_bytes: int, limits: S3Limits) -> int:
    """Say how large the parts of an object are.

    Args:
        num_bytes: The object's length.
        limits: The usual size.

    Returns:
        The usual size, or more where that would give too many parts.
    """
    return max(limits.part_bytes, -(-num_bytes // MAX_NUM_PARTS))


async def in_parallel(
    clock: CallClock, jobs: Sequence[Callable[[], Awaitable[T]]], num_parallel: int
) -> list[T]:
    """Do jobs at the same time; all or none.

    Args:
        clock: The time of these jobs and of nothing else; it is stopped when one fails.
        jobs: What to do.
        num_parallel: How many at a time.

    Returns:
        Their results, in the order of the jobs.

    Raises:
        StorageError: The first failure.
        GiveUpError: The first failure.
        ReplacedError: The first failure.
    """
    gate = asyncio.Semaphore(num_parallel)
    failures: list[StorageError | GiveUpError | ReplacedError] = []

    async def one(job: Callable[[], Awaitable[T]]) -> T | None:
        async with gate:
            is_done = False
            try:
                clock.check()
                result = await job()
                is_done = True
            except (StorageError, GiveUpError, ReplacedError) as error:
                failures.append(error)
                return None
            finally:
                if not is_done:
                    clock.stop()
            return result

    results = await asyncio.gather(*(one(job) for job in jobs))
    if failures:
        raise failures[0]
    return [result for result in results if result is not None]
