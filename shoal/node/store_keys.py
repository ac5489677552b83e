"""The names of a run's objects in a store: all computable, none taken from a peer.

Guarantees: every key is made of hex digits, decimal digits and fixed words. Does not do: I/O.

    <run>/manifest                              the manifest's byte form
    <run>/blobs/<sha256>                        genesis, token shards, tokenizer
    <run>/peers/<key>/payloads/<round>          a peer's payload, created once by the peer
    <run>/peers/<key>/hello                     written at start, to compare clocks
    <run>/probes/<random hex>                   written and deleted by `shoal doctor`, which in a
                                                peer's own bucket writes below payloads/ instead
    <run>/seeds/<key>                           a validator's signed peer record: where to dial it
    <run>/rounds/<round>/attending/<key>        "I train for this round"
    <run>/rounds/<round>/published/<key>        announcement of a payload
    <run>/rounds/<round>/record                 created once
    <run>/copies/<payload id>                   validators' copies of counted payloads
"""

from dataclasses import dataclass

from shoal.protocol.identity import PeerId

RUN_STORE = "run-store"
"""Provider of an announcement: the payload is where the run's records are."""
P2P = "p2p"
"""Provider of an announcement: the payload is served by peers, by its id."""


@dataclass(frozen=True, slots=True)
class StoreKeys:
    """The keys of one run."""

    run_id: bytes

    @property
    def _run(self) -> str:
        return self.run_id.hex()

    @property
    def manifest(self) -> str:
        """The manifest's byte form."""
        return f"{self._run}/manifest"

    def blob(self, sha256: bytes) -> str:
        """An object that the manifest names by content."""
        return f"{self._run}/blobs/{sha256.hex()}"

    def payloads(self, peer: PeerId) -> str:
        """Prefix of all of a peer's payloads, and of nothing else but doctor's probes."""
        return f"{self._run}/peers/{peer.key.hex()}/payloads/"

    def payload(self, round_id: int, peer: PeerId) -> str:
        """A peer's payload."""
        return f"{self.payloads(peer)}{round_id:08d}"

    def payload_at(self, provider: str, round_id: int, peer: PeerId, payload_id: bytes) -> str:
        """A peer's payload in the terms of the place that it was announced at."""
        if provider == P2P:
            return self.copy(payload_id)
        return self.payload(round_id, peer)

    def hello(self, peer: PeerId) -> str:
        """A small object that a node writes at start."""
        return f"{self._run}/peers/{peer.key.hex()}/hello"

    def probe(self, name: str) -> str:
        """A throw-away object of `shoal doctor`; `name` is random hex."""
        return f"{self._run}/probes/{name}"

    def seeds(self, validator: PeerId) -> str:
        """A validator's signed peer record, for those who look for the network."""
        return f"{self._run}/seeds/{validator.key.hex()}"

    def attending_prefix(self, round_id: int) -> str:
        """Prefix of all attending announcements of a round."""
        return f"{self._run}/rounds/{round_id:08d}/attending/"

    def attending(self, round_id: int, peer: PeerId) -> str:
        """One peer's attending announcement."""
        return self.attending_prefix(round_id) + peer.key.hex()

    def published_prefix(self, round_id: int) -> str:
        """Prefix of all payload announcements of a round."""
        return f"{self._run}/rounds/{round_id:08d}/published/"

    def published(self, round_id: int, peer: PeerId) -> str:
        """One peer's payload announcement."""
        return self.published_prefix(round_id) + peer.key.hex()

    def record(self, round_id: int) -> str:
        """The round's record."""
        return f"{self._run}/rounds/{round_id:08d}/record"

    def copy(self, payload_id: bytes) -> str:
        """A validator's copy of a payload."""
        return f"{self._run}/copies/{payload_id.hex()}"
