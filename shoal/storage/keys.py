"""Which strings may name an object.

Guarantees: a key that passes cannot leave the store (no absolute path, no `..`, no NUL, no escape),
is read the same way by every store, and cannot meet another key on a file system that folds case or
unicode forms. Keys are computed by our own code; this is the last wall, not the first.

The rules: 1 to 512 characters; segments joined by single slashes; each segment 1 to 128 characters
of `a-z 0-9 . _ -` and not beginning with a dot.

Does not say what a key means.
"""

import re
from typing import Final

from shoal.storage.errors import InvalidKeyError

MAX_KEY_CHARS: Final = 512
MAX_SEGMENT_CHARS: Final = 128

_SEGMENT: Final = re.compile(r"[a-z0-9_-][a-z0-9._-]{0,127}", re.ASCII)
_SHOWN_CHARS: Final = 80


def is_segment(text: str) -> bool:
    """Say whether `text` may stand between two slashes of a key."""
    return _SEGMENT.fullmatch(text) is not None


def check_key(key: str) -> None:
    """Let valid keys pass.

    Args:
        key: What shall name an object.

    Raises:
        InvalidKeyError: The key breaks a rule of this module.
    """
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise InvalidKeyError(
            f"an object key has 1 to {MAX_KEY_CHARS} characters, this one {len(key)}", key
        )
    _check_segments(key, key.split("/"))


def is_key(text: str) -> bool:
    """Say whether `text` may name an object."""
    return 1 <= len(text) <= MAX_KEY_CHARS and all(map(is_segment, text.split("/")))


def check_prefix(prefix: str) -> None:
    """Let every beginning of a valid key pass, the empty one included.

    Args:
        prefix: What the listed keys begin with, or what they come after.

    Raises:
        InvalidKeyError: No valid key begins so.
    """
    if len(prefix) > MAX_KEY_CHARS:
        raise InvalidKeyError(
            f"a prefix has at most {MAX_KEY_CHARS} characters, this one {len(prefix)}", prefix
        )
    *whole, last = prefix.split("/")
    _check_segments(prefix, [*whole, last] if last else whole)


def _check_segments(key: str, segments: list[str]) -> None:
    for segment in segments:
        if not is_segment(segment):
            raise InvalidKeyError(
                f"object key {_shown(key)}: segment {_shown(segment)} must be 1 to "
                f"{MAX_SEGMENT_CHARS} characters of a-z 0-9 . _ - and not begin with a dot",
                key,
            )


def _shown(text: str) -> str:
    short = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return ascii(short)
