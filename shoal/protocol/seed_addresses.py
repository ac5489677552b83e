"""The addresses of peers that a manifest may name, as text.

    /ip4/<address>/tcp/<port>/p2p/<libp2p id>          and with /ip6/, /dns4/ and /dns6/
    /ip4/<address>/udp/<port>/quic-v1/p2p/<libp2p id>  the same
    /dnsaddr/<name>                                    or with /p2p/<libp2p id> behind it

Guarantees: one spelling for one address, so that the manifest has one as well.
Does not do: resolve or dial; a seed is where to ask first, and nobody who has to be believed.
"""

import ipaddress
import re

from shoal.protocol.errors import InvalidManifestError

MAX_SEEDS = 16
MAX_SEED_CHARS = 256

_LABEL = r"(?!-)[0-9a-z_-]{1,63}(?<!-)"
NAME_PATTERN = rf"{_LABEL}(?:\.{_LABEL})*"
"""A name in the DNS in lower case, without the final dot."""
ID_PATTERN = r"[1-9A-HJ-NP-Za-km-z]{32,64}"
"""A libp2p id."""
_PORT = r"(?:0|[1-9][0-9]{0,4})"
_DIALLED = re.compile(
    rf"/(?:(?P<family>ip4|ip6)/(?P<host>[0-9a-f.:]{{2,45}})|dns[46]/{NAME_PATTERN})"
    rf"/(?:tcp/(?P<tcp>{_PORT})|udp/(?P<udp>{_PORT})/quic-v1)/p2p/{ID_PATTERN}"
)
_LOOKED_UP = re.compile(rf"/dnsaddr/{NAME_PATTERN}(?:/p2p/{ID_PATTERN})?")


def is_seed(text: str) -> bool:
    """Whether a text is one of the forms of this module."""
    if len(text) > MAX_SEED_CHARS:
        return False
    if _LOOKED_UP.fullmatch(text):
        return True
    match = _DIALLED.fullmatch(text)
    if match is None or not 1 <= int(match["tcp"] or match["udp"]) <= 65535:
        return False
    return match["family"] is None or _is_number(match["family"], match["host"])


def check_seeds(seeds: tuple[str, ...]) -> None:
    """Checks a manifest's list of seeds.

    Raises:
        InvalidManifestError: too many, one twice, or one that is no address of a peer.
    """
    if len(seeds) > MAX_SEEDS or len(set(seeds)) != len(seeds):
        expected = f"at most {MAX_SEEDS} seeds that differ"
        raise InvalidManifestError("endpoints.seeds", expected, f"{len(seeds)} seeds")
    for i, text in enumerate(seeds):
        if not is_seed(text):
            expected = "/ip4/ADDRESS/tcp/PORT/p2p/ID (or ip6, dns4, dns6) or /dnsaddr/NAME"
            raise InvalidManifestError(f"endpoints.seeds[{i}]", expected, ascii(text[:80]))


def _is_number(family: str, host: str) -> bool:
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False
    return number.version == int(family[-1]) and str(number) == host
