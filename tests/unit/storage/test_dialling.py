"""Of several addresses the first that answers, in virtual time on a network that is made up."""

import errno
import os
import socket
from collections.abc import Collection

import pytest

from shoal.storage.dialling import MAX_TRIED, STAGGER_S, Race
from tests.support.fake_clock import FakeClock

NEVER = None
SIX, FOUR = "2606:4700::1", "1.1.1.1"


class FakeSocket:
    """A connection that is decided at some time, well or badly."""

    def __init__(self, decided_at_s: float | None, number: int) -> None:
        self.decided_at_s = decided_at_s
        self.number = number
        self.is_open = True
        self.is_blocking = False

    def getsockopt(self, level: int, option: int) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self.number

    def setblocking(self, is_blocking: bool) -> None:
        self.is_blocking = is_blocking

    def close(self) -> None:
        self.is_open = False


class Network:
    """What becomes of a connection to each address: after how long, and with which errno."""

    def __init__(self, fates: dict[str, tuple[float | None, int]]) -> None:
        self.fates = fates
        self.clock = FakeClock()
        self.began_at_s = self.clock.now_s()
        self.dialled: list[tuple[str, float]] = []
        self.made: list[FakeSocket] = []

    @property
    def elapsed_s(self) -> float:
        return self.clock.now_s() - self.began_at_s

    def dial(self, address: str, port: int):
        assert port == 443
        self.dialled.append((address, round(self.elapsed_s, 3)))
        after_s, number = self.fates[address]
        if after_s == 0.0 and number:
            raise OSError(number, "at once")
        sock = FakeSocket(None if after_s is None else self.clock.now_s() + after_s, number)
        self.made.append(sock)
        return sock

    def decided(self, socks: Collection[FakeSocket], timeout_s: float) -> list[FakeSocket]:
        assert socks
        assert timeout_s > 0
        times = [sock.decided_at_s for sock in socks if sock.decided_at_s is not None]
        until_s = min([self.clock.now_s() + timeout_s, *times])
        self.clock.advance(max(until_s - self.clock.now_s(), 0))
        now_s = self.clock.now_s()
        return [s for s in socks if s.decided_at_s is not None and s.decided_at_s <= now_s]

    def connect(self, *addresses: str, limit_s: float = 10.0) -> str:
        race = Race(dial=self.dial, decided=self.decided, now_s=self.clock.now_s)  # type: ignore[arg-type]
        try:
            address, winner = race.run(addresses, 443, self.clock.now_s() + limit_s)
        finally:
            self.errors = race.errors
            self.left_open = [sock for sock in self.made if sock.is_open]
        assert [id(sock) for sock in self.left_open] == [id(winner)]
        assert self.left_open[0].is_blocking
        return address


def test_an_address_that_answers_is_the_only_one_dialled():
    net = Network({SIX: (0.2, 0), FOUR: (0.01, 0)})
    assert net.connect(SIX, FOUR) == SIX
    assert net.dialled == [(SIX, 0.0)]


def test_an_address_that_swallows_everything_costs_a_quarter_of_a_second():
    net = Network({SIX: (NEVER, 0), FOUR: (0.03, 0)})
    assert net.connect(SIX, FOUR) == FOUR
    assert net.dialled == [(SIX, 0.0), (FOUR, STAGGER_S)]
    assert net.elapsed_s == pytest.approx(STAGGER_S + 0.03)
    assert net.errors == {}


@pytest.mark.parametrize("after_s", [0.0, 0.1])
def test_after_a_failure_the_next_one_is_dialled_at_once(after_s):
    net = Network({SIX: (after_s, errno.ENETUNREACH), FOUR: (0.03, 0)})
    assert net.connect(SIX, FOUR) == FOUR
    assert net.dialled == [(SIX, 0.0), (FOUR, after_s)]
    assert list(net.errors) == [SIX]
    assert net.errors[SIX].errno == errno.ENETUNREACH


def test_a_slow_address_may_still_win_against_later_ones():
    net = Network({SIX: (0.9, 0), FOUR: (NEVER, 0), "1.0.0.1": (0.1, errno.ECONNREFUSED)})
    assert net.connect(SIX, FOUR, "1.0.0.1") == SIX
    assert net.elapsed_s == pytest.approx(0.9)
    assert len(net.made) == 3


def test_when_all_fail_it_is_the_first_failure_that_is_raised_and_nothing_stays_open():
    net = Network({SIX: (0.2, errno.ENETUNREACH), FOUR: (0.1, errno.ECONNREFUSED)})
    with pytest.raises(OSError, match=os.strerror(errno.ENETUNREACH)):
        net.connect(SIX, FOUR)
    assert net.left_open == []


def test_a_machine_that_is_offline_takes_the_limit_and_no_more():
    net = Network({SIX: (NEVER, 0), FOUR: (NEVER, 0)})
    with pytest.raises(TimeoutError):
        net.connect(SIX, FOUR, limit_s=3.0)
    assert net.elapsed_s == pytest.approx(3.0)
    assert net.left_open == []


def test_a_name_with_hundreds_of_addresses_costs_a_few_connections():
    addresses = [f"1.1.{number // 256}.{number % 256}" for number in range(1000)]
    net = Network(dict.fromkeys(addresses, (0.0, errno.ECONNREFUSED)))
    with pytest.raises(ConnectionRefusedError):
        net.connect(*addresses)
    assert len(net.dialled) == MAX_TRIED


def test_what_a_dialler_does_not_expect_leaves_nothing_open():
    net = Network({SIX: (NEVER, 0), FOUR: (0.03, 0)})

    def interrupted(address: str, port: int):
        if address == FOUR:
            raise KeyboardInterrupt
        return Network.dial(net, address, port)

    net.dial = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        net.connect(SIX, FOUR)
    assert net.left_open == []
