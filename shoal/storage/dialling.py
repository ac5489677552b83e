"""TCP connections to whichever of several addresses answers first.

Guarantees: the addresses are tried in the order given, the next one a quarter of a second after the
last, or at once when one has failed; the first that is connected is taken and all others are closed
before it is returned; everything happens in the thread of the caller and ends at the time given.

Connects to exactly the addresses that it is told: does not look up names, nor say which addresses
are allowed or which come first.
"""

import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from typing import Final

STAGGER_S: Final = 0.25
MAX_TRIED: Final = 16
"""A name may have hundreds of addresses; a machine that reaches none of these is offline."""

Dial = Callable[[str, int], socket.socket]
Decided = Callable[[Collection[socket.socket], float], list[socket.socket]]


def begin_dial(address: str, port: int) -> socket.socket:
    """Begin to connect, without waiting.

    Args:
        address: An IPv4 or IPv6 address.
        port: The port.

    Returns:
        A socket that does not block and may not be connected yet.

    Raises:
        OSError: There is no way to this address.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with ExitStack() as held:
        sock = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
        sock.setblocking(False)
        with suppress(BlockingIOError, InterruptedError):
            sock.connect((address, port))
        held.pop_all()
    return sock


def decided(socks: Collection[socket.socket], timeout_s: float) -> list[socket.socket]:
    """Wait until one of several connections is there or has failed.

    Args:
        socks: Those that have begun; at least one.
        timeout_s: The longest wait.

    Returns:
        Those of which it is known by now; perhaps none.
    """
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_WRITE, sock)
        return [key.data for key, _ in selector.select(timeout_s)]


class Race:
    """One connection to one of several addresses.

    Args:
        dial: Begins to connect.
        decided: Waits for some of what has begun.
        now_s: A clock in seconds that does not go back.
    """

    def __init__(
        self,
        *,
        dial: Dial = begin_dial,
        decided: Decided = decided,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dial = dial
        self._decided = decided
        self._now_s = now_s
        self._racing: dict[socket.socket, str] = {}
        self._next_at_s = 0.0
        self.errors: dict[str, OSError] = {}
        """Which addresses have failed, and how."""

    def run(
        self, addresses: Sequence[str], port: int, ends_at_s: float
    ) -> tuple[str, socket.socket]:
        """Connect.

        Args:
            addresses: At least one, the most promising first; no more than `MAX_TRIED` are tried.
            port: The port.
            ends_at_s: When to give up, by the same clock.

        Returns:
            The address that has answered, and a socket that is connected to it and blocks.

        Raises:
            OSError: All have failed: how the first of them did; or none has answered in time.
        """
        waiting = deque(addresses[:MAX_TRIED])
        try:
            while waiting or self._racing:
                left_s = ends_at_s - self._now_s()
                if left_s <= 0:
                    raise TimeoutError("no address has answered in time")
                if waiting and self._is_time():
                    self._begin(waiting.popleft(), port)
                elif winner := self._winner(left_s if not waiting else min(left_s, self._next_s())):
                    address = self._racing.pop(winner)
                    winner.setblocking(True)
                    return address, winner
        finally:
            for sock in self._racing:
                sock.close()
        raise next(iter(self.errors.values()))

    def _is_time(self) -> bool:
        return not self._racing or self._next_s() <= 0

    def _next_s(self) -> float:
        return self._next_at_s - self._now_s()

    def _begin(self, address: str, port: int) -> None:
        self._next_at_s = self._now_s() + STAGGER_S
        try:
            self._racing[self._dial(address, port)] = address
        except OSError as error:
            self._failed(address, error)

    def _winner(self, timeout_s: float) -> socket.socket | None:
        for sock in self._decided(tuple(self._racing), timeout_s):
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not number:
                return sock
            self._failed(self._racing.pop(sock), OSError(number, os.strerror(number)))
            sock.close()
        return None

    def _failed(self, address: str, error: OSError) -> None:
        self.errors[address] = error
        self._next_at_s = self._now_s()
