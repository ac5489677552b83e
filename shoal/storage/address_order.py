"""Which of a server's addresses to try first, from what became of earlier connections to it.

Guarantees: the families, IPv4 and IPv6, alternate; the family that worked last comes first and the
one that failed last second; so does the address that worked last within its family; those that have
failed since they last worked come after all others, the longest ago first. No address is left out
or added. Safe to use from several threads. No I/O.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from threading import Lock
from typing import Final

_MAX_FAILED: Final = 64


class AddressOrder:
    """What is known of the ways to one server."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_six_first: bool | None = None
        self._worked = ""
        self._failed: dict[str, None] = {}
        """The oldest failure first."""

    def ordered(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Put addresses into the order in which to try them.

        Args:
            addresses: IPv4 and IPv6 addresses, as the system's resolver has ordered them.

        Returns:
            Each of them once.
        """
        with self._lock:
            known = dict.fromkeys(addresses)
            good = [address for address in known if address not in self._failed]
            good.sort(key=lambda address: address != self._worked)
            bad = [address for address in self._failed if address in known]
            return (*self._alternating(good), *self._alternating(bad))

    def worked(self, address: str) -> None:
        """Note an address that was connected to.

        Args:
            address: It.
        """
        with self._lock:
            self._is_six_first = is_six(address)
            self._worked = address
            self._failed.pop(address, None)

    def failed(self, address: str) -> None:
        """Note an address that could not be connected to.

        Args:
            address: It.
        """
        with self._lock:
            self._is_six_first = not is_six(address)
            self._failed.pop(address, None)
            self._failed[address] = None
            if len(self._failed) > _MAX_FAILED:
                del self._failed[next(iter(self._failed))]

    def _alternating(self, addresses: Sequence[str]) -> Iterator[str]:
        if not addresses:
            return iter(())
        first = is_six(addresses[0]) if self._is_six_first is None else self._is_six_first
        leading = [address for address in addresses if is_six(address) == first]
        others = [address for address in addresses if is_six(address) != first]
        return (found for found in chain(*zip_longest(leading, others)) if found is not None)


def is_six(address: str) -> bool:
    """Say whether an address is an IPv6 one."""
    return ":" in address
