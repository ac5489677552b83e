"""One store's way to its server: worker threads, attempts, waits.

Guarantees: never more than `num_threads` requests at a time, and `num_control_threads` of the
control plane, so that an announcement never waits for a thread that a payload holds; all attempts
and waits of a call share one deadline; a wait that the server asks for is kept, by all calls and
also by those that come later, plus some of our own so that many clients do not come back at the
same moment; a call that is cancelled stops its threads at the next block.
"""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shoal.storage.allowance import is_control
from shoal.storage.errors import RefusedError, StorageError, StorageUnavailableError
from shoal.storage.progress import note_retry
from shoal.storage.s3_answers import AttemptError, GiveUpError, RefusalError, meaning
from shoal.storage.s3_clock import CallClock
from shoal.storage.s3_config import S3Limits
from shoal.storage.s3_transport import Answer
from shoal.storage.waits import collecting_waits

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What one request has brought.

    Attributes:
        values: The answer's fields by their S3 names.
        answer: The answer itself, for its headers; the body of a read is still to be read from it.
    """

    values: Mapping[str, Any]
    answer: Answer

    def word(self, name: str) -> str:
        """Give a field that must be there.

        Args:
            name: Its S3 name.

        Returns:
            Its text.

        Raises:
            AttemptError: The answer has none.
        """
        found = self.values.get(name)
        if not isinstance(found, str) or not found:
            raise AttemptError(f"an answer with {name} expected")
        return found


class Caller(Protocol):
    """Makes single requests; blocks."""

    def call(self, clock: CallClock, operation: str, parameters: Mapping[str, Any]) -> Reply:
        """Make one request.

        Args:
            clock: The call's time.
            operation: The S3 operation, like put_object.
            parameters: Its parameters; the bucket is added.

        Returns:
            What the server answered.

        Raises:
            RefusalError: The server answered with a refusal.
            AttemptError: The connection broke.
            GiveUpError: Too slow, too late, or no longer wanted.
            RefusedError: We refuse the server's address or its answer.
        """
        ...


class Link:
    """Requests of one store.

    Args:
        caller: Makes single requests.
        where: The bucket in words.
        limits: Time limits.
        now_s: A clock in seconds that does not go back.
        sleep: Waits.
    """

    def __init__(
        self,
        caller: Caller,
        where: str,
        limits: S3Limits,
        *,
        now_s: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.caller = caller
        self.where = where
        self.limits = limits
        self._now_s = now_s
        self._sleep = sleep
        self._threads = ThreadPoolExecutor(limits.num_threads, thread_name_prefix="shoal-s3")
        self._control_threads = ThreadPoolExecutor(
            limits.num_control_threads, thread_name_prefix="shoal-s3-control"
        )
        self._open_clock = CallClock(limits, now_s)
        self._quiet_until_s = 0.0
        """The server has asked not to be asked before."""

    @contextmanager
    def calling(self, key: str) -> Iterator[CallClock]:
        """Give the time of one call of the store, and end what is left of it afterwards.

        Args:
            key: The key that is asked for; empty when the whole store is meant.

        Yields:
            The call's time.

        Raises:
            StorageUnavailableError: The time was over, or the transfer too slow.
            RefusedError: We refuse the server's address or its answer.
        """
        what = self._what(key)
        if self._open_clock.is_stopped:
            raise StorageUnavailableError(f"{what}: the store is closed", key)
        try:
            with collecting_waits() as waits:
                clock = CallClock(
                    self.limits,
                    self._now_s,
                    stopped_by=self._open_clock,
                    excused_s=lambda: waits.total_s,
                )
                try:
                    yield clock
                finally:
                    clock.stop()
        except GiveUpError as error:
            raise StorageUnavailableError(f"{what}: {error.reason}", key) from error
        except RefusedError as error:
            raise RefusedError(f"{what}: {error.message}", key, error.code) from error

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Do blocking work in one of the store's threads.

        Args:
            work: What to do.
            arguments: Its arguments.

        Returns:
            Its result.
        """
        # The context carries the progress record of the transfer into the thread.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        threads = self._control_threads if is_control() else self._threads
        return await loop.run_in_executor(threads, context.run, work, *arguments)

    def short_clock(self) -> CallClock:
        """Give the time of a request that is made after a call has failed.

        Returns:
            A clock with a few seconds.
        """
        return CallClock(
            self.limits, self._now_s, ends_at_s=self._now_s() + self.limits.connect_timeout_s
        )

    def leave(self, work: Callable[..., object], *arguments: object) -> None:
        """Do blocking work in a thread without waiting for it, if threads are left.

        Args:
            work: What to do; its errors are lost.
            arguments: Its arguments.
        """
        if not self._open_clock.is_stopped:
            self._threads.submit(work, *arguments)

    async def ask(self, clock: CallClock, operation: str, **parameters: object) -> Reply:
        """Make one request, once.

        Args:
            clock: The call's time.
            operation: The S3 operation.
            parameters: Its parameters.

        Returns:
            What the server answered.

        Raises:
            RefusalError: The server answered with a refusal.
            AttemptError: The connection broke.
            GiveUpError: Too slow, too late, or no longer wanted.
            RefusedError: We refuse the server's address or its answer.
        """
        return await self.run(self.caller.call, clock, operation, parameters)

    async def again(self, clock: CallClock, key: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make attempts until one succeeds, one shows that none will, or the time is over.

        Args:
            clock: The call's time.
            key: The key that is asked for.
            attempt: Makes one attempt; raises `RefusalError` or `AttemptError`.

        Returns:
            What the attempt that succeeded returns.

        Raises:
            StorageError: What the refusal means, or StorageUnavailableError after the last attempt.
            GiveUpError: The time is over.
        """
        num_failed = 0
        num_waits = 0
        while True:
            await self._keep_quiet(clock)
            try:
                return await attempt()
            except (AttemptError, RefusalError) as error:
                failure = self._failure(error, key)
                num_failed = 0 if failure.has_progressed else num_failed + (not failure.is_busy)
                num_waits = 0 if failure.has_progressed else num_waits + 1
                if num_failed >= self.limits.num_attempts:
                    raise StorageUnavailableError(
                        f"{self._what(key)}: {failure.reason}; "
                        f"{num_failed} attempts in a row failed",
                        key,
                    ) from error
                self._note_request_for_quiet(failure.retry_after_s)
                wait_s = self._wait_s(num_waits, failure.retry_after_s)
                if wait_s >= clock.remaining_s():
                    raise GiveUpError(
                        f"{failure.reason}; a wait of {wait_s:.1f} s goes beyond the deadline"
                    ) from error
            note_retry()
            await self._sleep(wait_s)

    async def _keep_quiet(self, clock: CallClock) -> None:
        wait_s = self._quiet_until_s - self._now_s()
        if wait_s <= 0:
            return
        if wait_s >= clock.remaining_s():
            raise GiveUpError(f"the server has asked for {wait_s:.1f} s more without requests")
        await self._sleep(wait_s)

    def _note_request_for_quiet(self, retry_after_s: float) -> None:
        # Whoever gives a call up and makes another one would else ask again at once. A server that
        # asks for days gets the length of one call.
        if retry_after_s:
            until_s = self._now_s() + min(retry_after_s, self.limits.deadline_s)
            self._quiet_until_s = max(self._quiet_until_s, until_s)

    def close(self) -> None:
        """Let no further call begin and stop those that run, at their next block."""
        self._open_clock.stop()
        for threads in (self._threads, self._control_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def _what(self, key: str) -> str:
        return f"object {key!r} in {self.where}" if key else self.where

    def _failure(self, error: AttemptError | RefusalError, key: str) -> AttemptError:
        if isinstance(error, AttemptError):
            return error
        failure = meaning(error.refusal, key, self.where)
        if isinstance(failure, StorageError):
            raise failure from error
        return failure

    def _wait_s(self, num_waits: int, asked_s: float) -> float:
        if num_waits == 0:
            return 0.0
        limits = self.limits
        own_s: float = min(limits.first_wait_s * 2.0 ** min(num_waits - 1, 30), limits.max_wait_s)
        return asked_s + own_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients, no secret
