"""Numbers and dates in the headers of HTTP answers, read strictly. Pure.

Guarantees: what is none is None, or no wish; nothing here raises.
"""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

_MAX_DATE_CHARS: Final = 40
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


def number_in(text: str | None) -> int | None:
    """Read a header that is a number.

    Args:
        text: The header, or None.

    Returns:
        The number; None if it is anything but up to 18 digits.
    """
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def date_in(text: str | None) -> float | None:
    """Read a header that is a date, like Mon, 30 Nov 2026 20:00:00 GMT.

    Args:
        text: The header, or None.

    Returns:
        Unix seconds; None if it is anything else.
    """
    if text is None or len(text) > _MAX_DATE_CHARS:
        return None
    try:
        found = parsedate_to_datetime(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """Read how long the server asks to wait: in seconds, or until a time of its own clock.

    Args:
        headers: Of the answer.
        now_s: Our clock, unix seconds, where the answer has no Date.

    Returns:
        Seconds; 0 if it does not ask.
    """
    text = headers.get("Retry-After", "")
    seconds = number_in(text)
    if seconds is not None:
        return float(seconds)
    until_s, server_s = date_in(text), date_in(headers.get("Date"))
    return 0.0 if until_s is None else max(0.0, until_s - (now_s if server_s is None else server_s))
