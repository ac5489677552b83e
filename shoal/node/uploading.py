"""Getting a round's payload and announcements out over a link that may be down.

Guarantees: an upload is tried again for as long as its round is open, however long the store is
away, since a round in which nobody has published never closes; once the round is closed an upload
in progress has a tenth of a round left, because a late payload still shows that its author works,
and then it is given up, so that a store that hangs never holds this node; with this node's upload
quota used up it waits for the next month as for a store that is away; what is only a courtesy never
delays anything.

Does not do: decide what is sent (`publisher` does), or when a round is closed.
"""

import asyncio
import logging
from collections.abc import Callable

from shoal.node import publisher
from shoal.node.errors import ResourceError
from shoal.node.run_context import RunContext
from shoal.node.telemetry.names import EventName
from shoal.protocol.errors import RemoteProtocolError
from shoal.storage.allowance import QuotaReachedError
from shoal.storage.errors import StorageError, StorageFullError

logger = logging.getLogger(__name__)

_PAUSE_POLLS = 5


async def upload(
    run: RunContext, round_id: int, payload_id: bytes, raw: bytes, is_over: Callable[[], bool]
) -> bool:
    """Uploads and announces a payload.

    Args:
        run: shared.
        round_id: its round.
        payload_id: its id.
        raw: its bytes.
        is_over: the round is closed, or this node leaves.

    Returns:
        Whether it is announced; if not, the round is over, or this node leaves.

    Raises:
        RemoteProtocolError: E_KEY_IN_USE, another payload of this key is there.
        ResourceError: the store is full.
    """
    while not is_over():
        attempt = asyncio.create_task(publisher.publish(run, round_id, payload_id, raw))
        try:
            if not await _has_ended(run, attempt, is_over):
                logger.warning("round %d: it is over, the upload is given up", round_id)
                return False
            await attempt
        except StorageFullError as error:
            raise ResourceError(str(error)) from error
        except QuotaReachedError as error:
            # This node's own choice: it follows, and is not counted.
            run.log.emit(EventName.WARNING, round_id=round_id, message=str(error))
            logger.warning("round %d: nothing is published: %s", round_id, error)
            await _quota_allows(run, is_over)
        except StorageError as error:
            logger.warning("round %d: upload failed, trying again: %s", round_id, error)
            await asyncio.sleep(run.limits.poll_s * _PAUSE_POLLS)
        else:
            return True
        finally:
            attempt.cancel()
    return False


async def _quota_allows(run: RunContext, is_over: Callable[[], bool]) -> None:
    """Waits for a new month; a round in which nobody else can publish is still open then."""
    bandwidth = run.meter.bandwidth
    while bandwidth is not None and bandwidth.book is not None and not is_over():
        if not bandwidth.book.exhausted("up"):
            return
        await asyncio.sleep(run.limits.poll_s)


async def _has_ended(
    run: RunContext, attempt: "asyncio.Task[None]", is_over: Callable[[], bool]
) -> bool:
    """Waits for an attempt; False if it still runs some time after the round's end."""
    limits, ends_at_s = run.limits, float("inf")
    while run.meter.now_s() < ends_at_s:
        done, _ = await asyncio.wait({attempt}, timeout=limits.poll_s)
        if done:
            return True
        if is_over():
            ends_at_s = min(ends_at_s, run.meter.now_s() + limits.settle_s)
    return False


async def attend(run: RunContext, round_id: int) -> None:
    """Tells the validators that this node trains for the round; tries until it is cancelled."""
    while True:
        try:
            await publisher.attend(run, round_id)
        except StorageError as error:
            logger.info("round %d: attendance not told yet: %s", round_id, error)
            await asyncio.sleep(run.limits.poll_s * _PAUSE_POLLS)
        except RemoteProtocolError as error:
            # Another node with this key: publishing will say so.
            logger.info("round %d: attendance: %s", round_id, error)
            return
        else:
            return
