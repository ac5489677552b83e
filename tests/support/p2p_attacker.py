"""A peer of a run that serves over libp2p whatever a test wants, under whatever name.

It has a key of the roster and a network process like everybody's; its announcements are well signed
and go through the validator's HTTP service.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.node.network.client import NetworkClient
from shoal.node.network.messages import Start
from shoal.node.store_keys import P2P, StoreKeys
from shoal.protocol.announcement import (
    Announcement,
    AnnouncementType,
    Where,
    build_announcement,
)
from shoal.protocol.identity import Identity, load_key
from shoal.protocol.payload import build_payload
from shoal.protocol.payload_header import PAYLOAD_PREFIX_BYTES, peek
from shoal.storage.http import HttpStore
from tests.support import namespaces
from tests.support.background import Background
from tests.support.p2p_swarm import P2PSwarm


class P2PAttacker:
    """Made by `p2p_attacker`; all methods block."""

    def __init__(self, swarm: P2PSwarm, name: str, background: Background) -> None:
        self._swarm = swarm
        self._background = background
        self._identity: Identity = load_key(swarm.nodes[name].folder / "key.pem")
        self._keys = StoreKeys(swarm.folder.manifest.run_id)
        listen, url = swarm.links.attack_from(name)
        options = Start(
            folder=str(swarm.nodes[name].folder / "network"),
            run_id=swarm.folder.manifest.run_id,
            round_ms=60_000,
            listen=(listen,),
            allow_private=True,
        )
        self._network = background.enter(NetworkClient(options, self._identity))
        self._url = url
        status = background.run(self._network.status())
        self._address = f"{status.addresses[0]}/p2p/{status.peer_id}"

    @property
    def key_hex(self) -> str:
        """Its key, as events name it."""
        return self._identity.peer.key.hex()

    def payload(self, round_id: int, base_state: bytes, like: bytes, *, tokens: int = 64) -> bytes:
        """A payload of its own that everybody would take, with the body of another one."""
        manifest = self._swarm.folder.manifest
        return build_payload(
            self._identity,
            run_id=manifest.run_id,
            manifest_hash=manifest.manifest_hash,
            codec_value_bits=manifest.codec.value_bits,
            round_id=round_id,
            base_state=base_state,
            inner_steps=2,
            tokens=tokens,
            body=like[PAYLOAD_PREFIX_BYTES:],
        )

    def serve(self, announced: bytes, served: bytes) -> None:
        """Serves bytes under the id of a payload."""
        payload_id = peek(announced).payload_id
        self._background.run(self._network.serve(payload_id, served))

    def announce(self, announced: bytes) -> None:
        """Says where a payload is."""
        seen = peek(announced)
        announcement = Announcement(
            run_id=seen.header.run_id,
            round_id=seen.header.round_id,
            peer_key=self._identity.peer.key,
            type=AnnouncementType.PUBLISHED,
            payload_id=seen.payload_id,
            num_bytes=self._swarm.folder.manifest.payload_bytes,
            sequence=seen.header.round_id,
            where=Where(provider=P2P, address=self._address),
        )
        raw = build_announcement(self._identity, announcement)
        key = self._keys.published(seen.header.round_id, self._identity.peer)
        self._background.run(self._put(key, raw))

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Its host takes connections and says nothing."""
        pid = self._background.run(self._network.status()).p2pd_process_id
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _put(self, key: str, raw: bytes) -> None:
        store = HttpStore(self._url)
        try:
            await store.put(key, raw)
        finally:
            await store.close()


@contextmanager
def p2p_attacker(swarm: P2PSwarm, name: str) -> Iterator[P2PAttacker]:
    """In the place of a peer that does not run."""
    namespace = swarm.links.namespace(name)

    def prepare() -> None:
        if namespace:
            namespaces.enter(namespace)

    with Background(prepare) as background:
        yield P2PAttacker(swarm, name, background)


def any_payload(swarm: P2PSwarm) -> bytes:
    """Some payload that was counted."""
    folder = Path(swarm.root / "store" / swarm.folder.manifest.run_id.hex() / "copies")
    return next(folder.iterdir()).read_bytes()
