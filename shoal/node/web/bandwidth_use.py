"""What a node may take of its link and what it has taken this month, from its `bandwidth` events.

Guarantees: any event is taken; a number that is none counts as 0, which stands for "no limit" where
a limit was expected. Does not do: add anything up.
"""

from dataclasses import dataclass

from shoal.node.web.event_fields import Event, text, whole

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True, kw_only=True, slots=True)
class BandwidthUse:
    """The last event's fields; a limit of 0 is none."""

    month: str
    uploaded_bytes: int
    downloaded_bytes: int
    upload_quota_bytes: int
    download_quota_bytes: int
    upload_cap_bytes_per_s: int
    download_cap_bytes_per_s: int

    def line(self) -> str:
        """In words, at most 160 columns."""
        up = _side("up", self.uploaded_bytes, self.upload_quota_bytes, self.upload_cap_bytes_per_s)
        down = _side(
            "down", self.downloaded_bytes, self.download_quota_bytes, self.download_cap_bytes_per_s
        )
        return f"{self.month}: {up}; {down}"


def read_use(event: Event) -> BandwidthUse:
    """The fields of a `bandwidth` event."""
    names = [name for name in BandwidthUse.__slots__ if name != "month"]
    numbers = {name: max(whole(event, name), 0) for name in names}
    return BandwidthUse(month=text(event, "month", max_chars=7), **numbers)


def _side(word: str, used: int, quota: int, cap_bytes_per_s: int) -> str:
    of = f" of {_size(quota)} ({used / quota:.0%})" if quota else ""
    cap = f", at most {_size(cap_bytes_per_s)}/s" if cap_bytes_per_s else ""
    return f"{_size(used)} {word}{of}{cap}"


def _size(num_bytes: int) -> str:
    value, unit = float(num_bytes), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"
