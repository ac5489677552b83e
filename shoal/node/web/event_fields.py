"""Fields of an event, read as what they must be.

Guarantees: no value of a log, whole or damaged, raises here: what is not of the wanted kind is
None, 0 or empty. A text has printable characters only (no terminal escapes, no direction marks) and
a bounded length. A number is finite.

Does not do: know which events there are.
"""

import math
from collections.abc import Mapping
from statistics import median

Event = Mapping[str, object]

MAX_TEXT_CHARS = 200


def text(event: Event, name: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
    """A text, cut to `max_chars`; empty if there is none."""
    value = event.get(name)
    return printable(value, max_chars) if isinstance(value, str) else ""


def printable(value: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """The text with everything that is not printable replaced."""
    cut = value[:max_chars]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else "?" for c in cut)


def number(event: Event, name: str) -> float | None:
    """A finite number; None if it was not measured."""
    return _finite(event.get(name))


def seconds(event: Event, name: str) -> float:
    """A finite number; 0 if there is none."""
    return number(event, name) or 0.0


def whole(event: Event, name: str) -> int:
    """A whole number within 53 bits, as JavaScript has them; 0 if there is none."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 53:
        return 0
    return value


def flag(event: Event, name: str) -> bool:
    """True only if it says so."""
    return event.get(name) is True


def table(event: Event, name: str) -> Mapping[str, object]:
    """A table; empty if there is none."""
    value = event.get(name)
    return value if isinstance(value, dict) else {}


def numbers(event: Event, name: str) -> dict[str, float]:
    """The finite numbers of a table, by their key."""
    found = {key: _finite(value) for key, value in table(event, name).items()}
    return {key: value for key, value in found.items() if value is not None}


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def spread(samples: "list[float]") -> tuple[float | None, float | None, float | None]:
    """Median, 95th percentile (nearest rank) and largest; None without samples."""
    if not samples:
        return None, None, None
    ordered = sorted(samples)
    rank = math.ceil(0.95 * len(ordered)) - 1
    return median(ordered), ordered[rank], ordered[-1]


def rate(num_bytes: float, duration_s: float) -> float | None:
    """Bytes per second; None if nothing was timed."""
    return num_bytes / duration_s if duration_s > 0 and num_bytes > 0 else None
