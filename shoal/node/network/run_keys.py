"""What a key of a run's store means: the other direction of `node.store_keys`.

Guarantees: a key that is none of this run's, or of another form, is nothing here. Does no I/O.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shoal.protocol.errors import RemoteProtocolError
from shoal.protocol.identity import PeerId, parse_peer_key

_HEX: Final = r"[0-9a-f]{64}"
_KEY: Final = re.compile(
    rf"(?P<run>{_HEX})/(?:"
    rf"(?P<manifest>manifest)|"
    rf"blobs/(?P<blob>{_HEX})|"
    rf"copies/(?P<copy>{_HEX})|"
    rf"peers/(?P<author>{_HEX})/payloads/(?P<payload>[0-9]{{8}})|"
    rf"rounds/(?P<round>[0-9]{{8}})/(?:(?P<record>record)|"
    rf"(?P<said>attending|published)/(?P<signer>{_HEX})?))"
)


class RunKeyKind(StrEnum):
    """Which objects the network knows."""

    MANIFEST = "manifest"
    BLOB = "blob"
    COPY = "copy"
    PAYLOAD = "payload"
    RECORD = "record"
    ATTENDING = "attending"
    PUBLISHED = "published"

    @property
    def is_announcement(self) -> bool:
        """Whether peers say it of themselves."""
        return self in (RunKeyKind.ATTENDING, RunKeyKind.PUBLISHED)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunKey:
    """A key taken apart."""

    kind: RunKeyKind
    object_id: bytes = b""
    """Of a blob or a copy."""
    round_id: int = 0
    peer: PeerId | None = None
    """Whose payload or announcement; None for the prefix of all announcements."""


def parse_run_key(run_id: bytes, key: str) -> RunKey | None:
    """Take a key apart; nobody is trusted.

    Args:
        run_id: The run.
        key: A key, or the prefix of a round's announcements.

    Returns:
        What it means; None if it is nothing that the network has.
    """
    found = _KEY.fullmatch(key)
    if found is None or found["run"] != run_id.hex():
        return None
    try:
        peer = _peer(found["author"] or found["signer"])
    except RemoteProtocolError:
        return None
    if found["manifest"]:
        return RunKey(kind=RunKeyKind.MANIFEST, object_id=run_id)
    if found["blob"] or found["copy"]:
        kind = RunKeyKind.BLOB if found["blob"] else RunKeyKind.COPY
        return RunKey(kind=kind, object_id=bytes.fromhex(found["blob"] or found["copy"]))
    if found["payload"]:
        return RunKey(kind=RunKeyKind.PAYLOAD, round_id=int(found["payload"]), peer=peer)
    kind = RunKeyKind.RECORD if found["record"] else RunKeyKind(found["said"])
    return RunKey(kind=kind, round_id=int(found["round"]), peer=peer)


def _peer(text: str | None) -> PeerId | None:
    return None if text is None else parse_peer_key(bytes.fromhex(text))
