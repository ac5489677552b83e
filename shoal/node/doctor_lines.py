"""What doctor says: a line per check, how bad it is, and how a person sees it.

Guarantees: the codes are frozen, because the documentation is found by them. Does not do: check
anything.
"""

from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class DoctorCode(StrEnum):
    """What was checked; frozen, because the documentation is found by it."""

    KEY = "D_KEY"
    ROLE = "D_ROLE"
    STORE = "D_STORE"
    CLOCK = "D_CLOCK"
    DATA = "D_DATA"
    DISK = "D_DISK"
    MEMORY = "D_MEMORY"
    GPU = "D_GPU"
    UPLOAD = "D_UPLOAD"
    DOWNLOAD = "D_DOWNLOAD"
    BUCKET = "D_BUCKET"
    BANDWIDTH = "D_BANDWIDTH"
    NETWORK = "D_NETWORK"
    SEED = "D_SEED"
    REACHABLE = "D_REACHABLE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One finding."""

    code: DoctorCode
    level: Level
    found: str
    fix: str = ""
    """What mends it; empty when nothing has to be mended."""


def exit_code(lines: list[Line]) -> int:
    """By the worst line: 0 ok, 1 a warning, 2 a failure."""
    levels = {line.level for line in lines}
    return 2 if Level.FAILURE in levels else 1 if Level.WARNING in levels else 0


def ok(code: DoctorCode, found: str) -> Line:
    """Nothing has to be mended."""
    return Line(code=code, level=Level.OK, found=found)


def warning(code: DoctorCode, found: str, fix: str) -> Line:
    """It will work, perhaps badly."""
    return Line(code=code, level=Level.WARNING, found=found, fix=fix)


def failure(code: DoctorCode, found: str, fix: str) -> Line:
    """It will not work."""
    return Line(code=code, level=Level.FAILURE, found=found, fix=fix)


def print_findings(lines: list[Line]) -> None:
    """Prints lines for a person, in colours where the terminal has them."""
    styles = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}
    console = Console()
    for line in lines:
        console.print(f"{line.level:8}", style=styles[line.level], end="")
        console.print(f"{line.code:11} {line.found}", markup=False, highlight=False, soft_wrap=True)
        if line.fix:
            console.print(f"{'':20}mend: {line.fix}", markup=False, highlight=False, soft_wrap=True)


def size_text(num_bytes: int) -> str:
    """A number of bytes in words."""
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "B" else f"{num_bytes} B"
