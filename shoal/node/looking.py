"""Whether something is there, asked of a disk that this user may not be allowed to look at.

Guarantees: a folder that is closed to this user is a `ConfigError`, never a traceback
(`Path.exists` raises there). Does not do: open or make anything.
"""

from pathlib import Path

from shoal.node.errors import ConfigError


def is_there(path: Path, what: str) -> bool:
    """Whether a file or folder of this name is there.

    Args:
        path: its name.
        what: for the message, for example "--out".

    Raises:
        ConfigError: this user may not look.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        expected = "a place that this user may look at"
        raise ConfigError(path, what, expected, error.strerror or "") from error
    return True
