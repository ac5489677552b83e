"""A server that asks for a pause gets it from all calls of a store, also from those that follow."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from shoal.storage.errors import StorageUnavailableError
from shoal.storage.s3_answers import Refusal, RefusalError
from shoal.storage.s3_clock import CallClock
from shoal.storage.s3_config import S3Limits
from shoal.storage.s3_link import Link, Reply

LIMITS = S3Limits(deadline_s=600.0, num_threads=2)


@dataclass
class BusyServer:
    """Answers every request so; notes when it came."""

    retry_after_s: float
    now_s: float = 0.0
    asked_at_s: list[float] = field(default_factory=list)

    def call(self, _: CallClock, __: str, ___: Mapping[str, object]) -> Reply:
        self.asked_at_s.append(self.now_s)
        raise RefusalError(Refusal(status=429, code="", retry_after_s=self.retry_after_s))

    async def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        await asyncio.sleep(0)


async def ask(server: BusyServer, link: Link) -> None:
    with link.calling("key") as clock:

        async def attempt() -> Reply:
            return server.call(clock, "get_object", {})

        await link.again(clock, "key", attempt)


def link_to(server: BusyServer) -> Link:
    return Link(server, "bucket", LIMITS, now_s=lambda: server.now_s, sleep=server.sleep)


@pytest.mark.parametrize("retry_after_s", [1.0, 12.0, 60.0, 599.0])
def test_calls_that_are_given_up_and_made_again_do_not_ask_sooner(retry_after_s: float) -> None:
    server = BusyServer(retry_after_s)

    async def body() -> None:
        link = link_to(server)
        for _ in range(40):
            # As a gather does: it gives a call up after its own time and makes the next one.
            call = asyncio.create_task(ask(server, link))
            for _ in range(5):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        link.close()

    asyncio.run(body())
    gaps = [b - a for a, b in zip(server.asked_at_s, server.asked_at_s[1:], strict=False)]
    assert len(gaps) >= 2
    assert min(gaps) >= retry_after_s - 1e-6


def test_a_server_that_asks_for_days_is_not_asked_again_within_a_call() -> None:
    server = BusyServer(1e6)

    async def body() -> None:
        link = link_to(server)
        for _ in range(5):
            with pytest.raises(StorageUnavailableError, match=r"429|without requests"):
                await ask(server, link)
        assert len(server.asked_at_s) == 1
        server.now_s += LIMITS.deadline_s
        with pytest.raises(StorageUnavailableError):
            await ask(server, link)
        assert len(server.asked_at_s) == 2
        link.close()

    asyncio.run(body())
