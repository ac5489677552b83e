"""Asking several peers for one thing without waiting for one that hangs.

They are asked in their order, each `PAUSE_S` after the last or as soon as that one has failed,
while the earlier ones go on: an address that swallows packets costs this pause instead of the time
limit of a dial.

Guarantees: the first answer counts, and nobody is asked after it; all who are still being asked are
cancelled and have ended when it returns. Does not know what is asked for, and asks nobody twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from shoal.storage.errors import ObjectNotFoundError, StorageError

PAUSE_S: Final = 1.5
"""Longer than a dial and an answer take on a usual link, much shorter than the limit of a dial."""

AnswerT = TypeVar("AnswerT")


async def first_answer(
    asks: Sequence[Callable[[], Awaitable[AnswerT]]], *, patience_s: float | None = None
) -> AnswerT:
    """Ask until somebody answers.

    Args:
        asks: Asks one peer each; ends within a time of its own, fails with a `StorageError`.
        patience_s: How much longer to wait for the silent ones once all have been asked and
            somebody has said that it has nothing; None: until their own time is over.

    Returns:
        The first answer.

    Raises:
        ObjectNotFoundError: Those who answered have nothing, or there is nobody to ask.
        StorageError: Nobody answered, or without `patience_s` somebody did not.
    """
    waiting = list(asks)
    running: set[asyncio.Future[AnswerT]] = set()
    missing: ObjectNotFoundError | None = None
    away: StorageError | None = None
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(waiting.pop(0)()))
            limit_s = PAUSE_S if waiting else None if missing is None else patience_s
            done, running = await asyncio.wait(
                running, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done and not waiting:
                break
            for one in done:
                try:
                    return one.result()
                except ObjectNotFoundError as error:
                    missing = error
                except StorageError as error:
                    away = error
    finally:
        await end_all(running)
    if missing is not None and (away is None or patience_s is not None):
        raise missing
    raise away or ObjectNotFoundError("there is nobody to ask", "")


async def end_all(running: set[asyncio.Future[AnswerT]]) -> None:
    """Cancel what is not wanted any more and wait until it has ended.

    Args:
        running: Tasks.
    """
    for one in running:
        one.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)
