"""Where the unix sockets of p2pd lie.

Guarantees: the folder is ours and nobody else's (mode 0700: whoever may open these sockets drives
p2pd), it is empty at start, and its name leaves room for the names of the sockets.
"""

import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import Final

MAX_FOLDER_BYTES: Final = 70
"""A socket's path has at most 107 bytes, p2pd's names take up to 30."""


def sockets_folder(state_folder: str) -> Path:
    """Make the folder and empty it.

    Args:
        state_folder: The network's folder within the node's state.

    Returns:
        The folder: in the state folder where the path is short enough, else in /tmp.

    Raises:
        OSError: It cannot be made, or somebody else's folder is in its place.
    """
    folder = Path(state_folder).absolute() / "s"
    if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        folder = Path("/tmp") / f"shoal-{os.getuid()}-{name}"  # noqa: S108 - checked below
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of ours alone (mode {mode:04o})")
    for left in folder.glob("*.sock"):
        left.unlink(missing_ok=True)
    return folder


def drop_folder(folder: Path) -> None:
    """Remove the folder and what is left in it; whatever cannot be removed stays.

    Args:
        folder: What `sockets_folder` returned.
    """
    shutil.rmtree(folder, ignore_errors=True)
