"""The file of peers that answered, so that the next start does not need a seed.

Guarantees: bounded; a file that cannot be read is as good as none, one that cannot be written is a
line in the log.
"""

import logging
from pathlib import Path
from typing import Final

from shoal.protocol import strict_json
from shoal.protocol.errors import RemoteProtocolError

MAX_KEPT_PEERS: Final = 32
_MAX_FILE_BYTES: Final = 64 * 1024

_log = logging.getLogger(__name__)


def with_good_peer(texts: tuple[str, ...], text: str) -> tuple[str, ...]:
    """The list with one peer put first; the oldest ones make room."""
    return (text, *(one for one in texts if one != text))[:MAX_KEPT_PEERS]


def load_good_peers(file: Path) -> tuple[str, ...]:
    """Read the kept peers.

    Args:
        file: As `save_good_peers` wrote it, or anything else.

    Returns:
        Their addresses, the last one that answered first.
    """
    try:
        fields = strict_json.load(file.read_bytes(), _MAX_FILE_BYTES)
    except (OSError, RemoteProtocolError):
        return ()
    texts = fields.get("peers")
    if not isinstance(texts, list):
        return ()
    return tuple(text for text in texts if isinstance(text, str))[:MAX_KEPT_PEERS]


def save_good_peers(file: Path, texts: tuple[str, ...]) -> None:
    """Write the kept peers.

    Args:
        file: Replaced as a whole.
        texts: Their addresses.
    """
    partial = file.with_suffix(".partial")
    try:
        partial.write_bytes(strict_json.dump({"peers": list(texts)}))
        partial.replace(file)
    except OSError as error:
        _log.warning("%s cannot be written: %s", file, error)
