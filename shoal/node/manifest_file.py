"""Reading the manifest that somebody keeps as a file.

Guarantees: no more is read than the largest manifest may have; whatever is wrong is a `ConfigError`
with the file and the field. Does not do: fetch a manifest.
"""

from pathlib import Path

from shoal.node.errors import ConfigError
from shoal.protocol.errors import InvalidManifestError, RemoteProtocolError
from shoal.protocol.manifest import MAX_MANIFEST_BYTES, RunManifest, read_manifest


def load_manifest(path: Path) -> RunManifest:
    """Reads a manifest file.

    Raises:
        ConfigError: it is missing, damaged or not a manifest.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_MANIFEST_BYTES + 1)
        return read_manifest(raw)
    except OSError as error:
        raise ConfigError(path, "the file", "a manifest", error.strerror or "") from error
    except InvalidManifestError as error:
        raise ConfigError(path, error.path, error.expected, error.found) from error
    except RemoteProtocolError as error:
        raise ConfigError(path, "the whole file", "a canonical manifest", str(error)) from error
