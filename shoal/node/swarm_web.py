"""The pages of a swarm's nodes: one port for each, known before they start.

Guarantees: every page listens on loopback; the ports were free when they were chosen. Does not do:
serve anything; each node serves its own page while it runs.
"""

import json
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from shoal.node.errors import ConfigError
from shoal.node.swarm_stores import SwarmStore

_HOST = "127.0.0.1"
_MAX_SHOWN = 8


def choose_ports(web: str, num_nodes: int) -> tuple[int, ...]:
    """Ports for the pages of all nodes, the validator's first.

    Args:
        web: of the command line: empty for no pages, "auto" for any free ports, or the first one;
            the others follow it.
        num_nodes: nodes of the swarm.

    Returns:
        A port for each node; none if there are to be no pages.

    Raises:
        ConfigError: it is something else, or a port is taken.
    """
    if not web:
        return ()
    if web == "auto":
        return _held(num_nodes, lambda _: 0)
    highest = 65536 - num_nodes
    if not (web.isascii() and web.isdigit() and len(web) <= 5 and 1 <= int(web) <= highest):
        raise ConfigError("command line", "--web", f'"auto" or a port from 1 to {highest}', web)
    return _held(num_nodes, lambda number: int(web) + number)


def with_pages(stores: SwarmStore, ports: Sequence[int]) -> SwarmStore:
    """Adds the pages to what the nodes' configurations say.

    Args:
        stores: of `open_swarm_store`.
        ports: of `choose_ports`; none for no pages.
    """
    if not ports:
        return stores
    sections = [f"\n[web]\nlisten = {json.dumps(f'{_HOST}:{port}')}\n" for port in ports]
    return replace(
        stores,
        validator_toml=stores.validator_toml + sections[0],
        peer_tomls=tuple(
            toml + section for toml, section in zip(stores.peer_tomls, sections[1:], strict=True)
        ),
    )


def pages_text(names: Sequence[str], ports: Sequence[int]) -> str:
    """The pages' addresses for a person, a line for each of the first nodes."""
    shown = list(zip(names, ports, strict=True))[:_MAX_SHOWN]
    width = max(len(name) for name, _ in shown)
    lines = [f"page of {name:{width}}  http://{_HOST}:{port}/" for name, port in shown]
    if len(ports) > len(shown):
        lines.append(f"and {len(ports) - len(shown)} more: [web] in nodes/*/node.toml")
    return "\n".join(lines)


def _held(num_nodes: int, port_of: Callable[[int], int]) -> tuple[int, ...]:
    """Binds all of them at the same time, so that no two are one, and lets them go."""
    ports = []
    with ExitStack() as held:
        for number in range(num_nodes):
            probe = held.enter_context(socket.socket())
            # As the page itself does: connections that have just ended are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port_of(number)))
                probe.listen(1)
            except OSError as error:
                expected = f"{num_nodes} free ports from there on, one for each node"
                found = f"{port_of(number)}: {error.strerror}"
                raise ConfigError("command line", "--web", expected, found) from error
            ports.append(int(probe.getsockname()[1]))
    return tuple(ports)
