"""The links of a soak's nodes: a proxy for each way that leads to a node or away from it."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak.waiting import run_python
from tests.support.ports import HOST, free_port
from tests.support.shaping_proxy import ShapingProxy


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """What leads to one node and away from it."""

    store: ShapingProxy
    """From the node to the S3 server: its own bucket and the others'."""
    inbox: ShapingProxy | None
    """From a peer to the validator's HTTP service."""
    libp2p: ShapingProxy
    """From others to the node's libp2p process, which announces this address only."""
    libp2p_port: int
    """Where that process listens."""

    @property
    def all(self) -> list[ShapingProxy]:
        """Every one that there is."""
        return [self.store, self.libp2p, *([] if self.inbox is None else [self.inbox])]


async def open_links(
    names: Sequence[str], store_port: int, inbox_port: int, with_inbox: Sequence[str]
) -> tuple[AsyncExitStack, dict[str, Links]]:
    """Opens links for these nodes; closing the stack closes them."""
    held, found = AsyncExitStack(), dict[str, Links]()
    for name in names:
        port = free_port()
        store = await held.enter_async_context(ShapingProxy(HOST, store_port))
        libp2p = await held.enter_async_context(ShapingProxy(HOST, port))
        inbox = None
        if name in with_inbox:
            inbox = await held.enter_async_context(ShapingProxy(HOST, inbox_port))
        found[name] = Links(store=store, inbox=inbox, libp2p=libp2p, libp2p_port=port)
    return held, found


async def libp2p_id(node_folder: Path) -> str:
    """The id of a node's libp2p process before it runs, so that others can be told."""
    folder = node_folder / "state" / "network"
    return await run_python("-m", "shoal.node.network.identify", str(folder))
