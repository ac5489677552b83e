"""The stores of announced places: where a peer's payload is read from.

Guarantees: only places that the manifest knows: a provider of its list (host from the template,
addresses checked, anonymous, no redirect), a libp2p address, or the run's own store. A libp2p
address that does not give a payload is not the last word: its peer's present addresses and those
who serve the payload again are asked too. Of an address that is not public only the id is used: its
peer may have a connection to this node.
"""

from collections import OrderedDict

from shoal.node.buckets import bucket_at
from shoal.node.config import NodeConfig
from shoal.node.network.addresses import to_reach
from shoal.node.network.client import NetworkClient
from shoal.node.network.p2p_store import P2PStore
from shoal.node.network.payload_copies import is_authentic
from shoal.node.run_network import RunNetwork
from shoal.node.store_keys import P2P, RUN_STORE
from shoal.protocol.announcement import Where
from shoal.protocol.errors import ErrorCode, PayloadError
from shoal.protocol.manifest import RunManifest
from shoal.storage.errors import RefusedError
from shoal.storage.object_store import ObjectStore
from shoal.storage.s3 import S3Store

_MAX_READERS = 64


def served_by(network: NetworkClient, address: str, joined: RunNetwork | None) -> P2PStore:
    """Payloads at an address, or wherever its peer is now, or whoever else serves them."""

    async def find(_: bytes) -> list[tuple[str, ...]]:
        return [(address,)] if address else []

    more = None if joined is None else joined.objects.payload_sources(address)
    # Payload ids are hashes of headers, not of all bytes: the payload's own check follows, and its
    # verdict is the author's, so what others serve must be the author's to the last byte.
    return P2PStore(network, find, named_by_hash=False, find_more=more, check=is_authentic)


class Readers:
    """The stores of announced places, made when they are first named; the oldest are closed."""

    def __init__(
        self,
        manifest: RunManifest,
        config: NodeConfig,
        run: ObjectStore,
        network: NetworkClient | None,
        joined: RunNetwork | None,
    ) -> None:
        self._joined = joined
        self._manifest = manifest
        self._config = config
        self._run = run
        self._network = network
        self._buckets: OrderedDict[Where, S3Store] = OrderedDict()
        self._retired: list[S3Store] = []

    def find(self, where: Where) -> ObjectStore:
        """The store that holds a payload announced as being at `where`.

        Raises:
            PayloadError: no such place is allowed in this run; has the code.
        """
        if where.provider == RUN_STORE:
            return self._run
        if where.provider == P2P:
            if self._network is None:
                detail = "this node runs no libp2p process ([network] enabled = true)"
                raise PayloadError(ErrorCode.E_HOST_NOT_ALLOWED, detail)
            return served_by(self._network, self._allowed(where.address), self._joined)
        return self._bucket(where)

    def _allowed(self, address: str) -> str:
        private = self._manifest.endpoints.allow_loopback
        try:
            return to_reach(address, allow_private=private) if address else ""
        except ValueError as error:
            raise PayloadError(ErrorCode.E_HOST_NOT_ALLOWED, str(error)) from error

    def _bucket(self, where: Where) -> S3Store:
        if where not in self._buckets:
            try:
                place = bucket_at(self._manifest, self._config, where)
            except RefusedError as error:
                raise PayloadError(ErrorCode(error.code), error.message) from error
            # Anonymous: a stranger's server never sees a key of this node.
            self._buckets[where] = S3Store(place, None)
            if len(self._buckets) > _MAX_READERS:
                self._retired.append(self._buckets.popitem(last=False)[1])
        self._buckets.move_to_end(where)
        return self._buckets[where]

    def close(self) -> None:
        """Closes all connections."""
        for bucket in (*self._retired, *self._buckets.values()):
            bucket.close()
