"""An event loop whose time passes only when there is nothing else to do.

Sleeps and time-outs take no real time, and the order of everything is the same in every run:
`asyncio.to_thread` runs its function at once in the loop's own thread and hands over the result
after a delay that the test chooses.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_S = 1_000_000.0
_MAX_VIRTUAL_S = 1e7


class _VirtualSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the loop waits for something that no timer will bring")
        ready = super().select(0)
        if not ready:
            self.now_s += timeout
        if self.now_s > START_S + _MAX_VIRTUAL_S:
            raise RuntimeError("virtual time runs and nothing comes to an end")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Made by `run_virtual`; also a `Clock`."""

    def __init__(self, thread_delay_s: Callable[[], float]) -> None:
        self._virtual = _VirtualSelector()
        self._thread_delay_s = thread_delay_s
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def now_s(self) -> float:
        return self._virtual.now_s

    def advance(self, seconds: float) -> None:
        """What a function in a 'thread' does to take time."""
        self._virtual.now_s += seconds

    # The types of asyncio's own stubs are wider than what this loop needs.
    def run_in_executor(self, executor, func, *args):  # type: ignore[override]
        future = self.create_future()

        def hand_over(set_result: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                set_result(value)

        try:
            value = func(*args)
        except Exception as error:  # noqa: BLE001  # as a thread pool does
            self.call_later(self._thread_delay_s(), hand_over, future.set_exception, error)
        else:
            self.call_later(self._thread_delay_s(), hand_over, future.set_result, value)
        return future


def run_virtual(
    body: Callable[[VirtualLoop], Coroutine[Any, Any, T]],
    thread_delay_s: Callable[[], float] = lambda: 0.0,
) -> T:
    """Runs `body(loop)` to its end in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(thread_delay_s)) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        return runner.run(body(loop))
