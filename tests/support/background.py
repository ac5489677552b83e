"""An event loop in a thread, for servers that stand beside a test that waits for processes."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines in a thread of its own; use it as a context manager.

    Args:
        prepare: Called in the thread before its loop begins, to enter a network namespace say.
    """

    def __init__(self, prepare: Callable[[], None] = lambda: None) -> None:
        self._prepare = prepare
        self._loop = asyncio.new_event_loop()
        self._held = AsyncExitStack()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(self._held.aclose())
            self.run(self._end_tasks())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enters a context, which is left when this object's is."""
        return self.run(self._held.enter_async_context(context))

    def call(self, action: Callable[[], None]) -> None:
        """Does something in the thread of the loop."""

        async def act() -> None:
            action()

        self.run(act())

    def _run(self) -> None:
        self._prepare()
        self._loop.run_forever()

    async def _end_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
