"""What the kernel's /proc says of processes. Linux only."""

import os
from pathlib import Path
from typing import Final

from tests.support.processes import is_alive

PROC: Final = Path("/proc")
TOKEN_NAME: Final = "SHOAL_SOAK"  # noqa: S105 - a variable by which our processes are known


def of_token(token: str, root: Path) -> dict[int, str]:
    """Command lines of living processes with our token in their environment, or our folder."""
    wanted = f"{TOKEN_NAME}={token}".encode()
    found = {}
    for pid in process_ids():
        if pid == os.getpid():
            continue
        line = command_line(pid)
        try:
            is_ours = wanted in (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            is_ours = False
        is_server = line.startswith("/") and "/weed" in line and str(root) in line
        if (is_ours or is_server) and is_alive(pid):
            found[pid] = line or "?"
    return found


def command_line(pid: int) -> str:
    """Words of the command, with spaces between them; empty if there is no such process."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def children_by_parent() -> dict[int, list[int]]:
    """The living children of every process."""
    found: dict[int, list[int]] = {}
    for pid in process_ids():
        try:
            words = (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if words[0] != "Z":
            found.setdefault(int(words[1]), []).append(pid)
    return found


def process_ids() -> list[int]:
    """All processes of this machine."""
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
