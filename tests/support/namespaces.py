"""A network of namespaces: one for every node, joined by a hub that can be told to swallow packets.

    node namespace --- veth pair --- hub namespace --- veth pair --- node namespace

A cut is made of routes, not of closed sockets: packets from and to a node vanish, nobody hears of
it, and what was on its way is sent again after the mending. Needs root and the program `ip`.
"""

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x4000_0000
_FOLDER = Path("/run/netns")
_PREFIX = "shoal-test-"


def enter(namespace: str) -> None:
    """Moves the calling thread, and what it starts, into a network namespace.

    Raises:
        OSError: It may not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(_FOLDER / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)
    finally:
        os.close(descriptor)


def why_not() -> str:
    """Why no namespaces can be made here; empty if they can."""
    if not hasattr(os, "geteuid") or os.geteuid():
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the program ip"
    try:
        with network(["probe"]) as lab:
            lab.cut("probe")
            lab.mend("probe")
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {error}"
    return ""


class NamespaceLab:
    """The namespaces; made by `network`."""

    def __init__(self, names: list[str]) -> None:
        self._base = f"{_PREFIX}{os.getpid()}"
        self._hub = f"{self._base}-hub"
        self._numbers = {name: number for number, name in enumerate(names, start=1)}

    def namespace(self, name: str) -> str:
        """A node's."""
        return f"{self._base}-{self._numbers[name]}"

    def address(self, name: str) -> str:
        """A node's IPv4 address."""
        return f"10.77.{self._numbers[name]}.2"

    def cut(self, name: str) -> None:
        """Packets from and to a node vanish from now on."""
        at = self.address(name)
        _ip("-n", self._hub, "route", "add", "blackhole", f"{at}/32")
        _ip("-n", self._hub, "rule", "add", "from", at, "blackhole")

    def mend(self, name: str) -> None:
        """They no longer do."""
        at = self.address(name)
        _ip("-n", self._hub, "rule", "del", "from", at, "blackhole")
        _ip("-n", self._hub, "route", "del", "blackhole", f"{at}/32")

    def num_packets(self, name: str) -> tuple[int, int]:
        """Packets that have come to the hub from a node, and that the hub has passed to it."""
        link = f"v{self._numbers[name]}"
        (found,) = json.loads(_ip("-n", self._hub, "-s", "-j", "link", "show", "dev", link))
        stats = found["stats64"]
        return stats["rx"]["packets"], stats["tx"]["packets"]

    def make(self) -> None:
        """Makes all namespaces and joins them."""
        _remove_left_over()
        _ip("netns", "add", self._hub)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _ip("netns", "exec", self._hub, "sh", "-c", forward)
        for name, number in self._numbers.items():
            own, gate, link = self.namespace(name), f"10.77.{number}.1", f"v{number}"
            _ip("netns", "add", own)
            pair = ["type", "veth", "peer", "name", "eth0", "netns", own]
            _ip("-n", self._hub, "link", "add", link, *pair)
            _ip("-n", self._hub, "addr", "add", f"{gate}/30", "dev", link)
            _ip("-n", self._hub, "link", "set", link, "up")
            _ip("-n", own, "addr", "add", f"{self.address(name)}/30", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", own, "link", "set", device, "up")
            _ip("-n", own, "route", "add", "default", "via", gate)

    def remove(self) -> None:
        """Removes whatever of it is there."""
        for path in _FOLDER.glob(f"{self._base}-*"):
            _ip("netns", "del", path.name)


@contextmanager
def network(names: list[str]) -> Iterator[NamespaceLab]:
    """Namespaces for these nodes.

    Raises:
        subprocess.CalledProcessError: `ip` refuses.
    """
    lab = NamespaceLab(names)
    try:
        lab.make()
        yield lab
    finally:
        lab.remove()


def _remove_left_over() -> None:
    """What test processes that were killed have left."""
    for path in _FOLDER.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX).partition("-")[0]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            try:
                _ip("netns", "del", path.name)
            except subprocess.CalledProcessError:
                # Another test process may have been quicker.
                if path.exists():
                    raise


def _ip(*arguments: str) -> str:
    command = ["ip", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout
