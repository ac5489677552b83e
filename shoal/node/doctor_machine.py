"""What doctor checks of the machine itself: disk, memory, GPU, against the run's model.

Guarantees: nothing is allocated or written. Does not do: know activations, which depend on batch
and sequence length.
"""

import os
import shutil
from pathlib import Path

from shoal.node.doctor_lines import DoctorCode, Line, failure, ok, size_text, warning
from shoal.protocol.manifest import RunManifest

# Base, local parameters, gradient, two moments of AdamW, residual: fp32 each.
_BYTES_PER_PARAMETER_HELD = 6 * 4
# Two checkpoints of base, residual and two moments, and the file being written.
_BYTES_PER_PARAMETER_ON_DISK = 3 * 4 * 4
_COMFORT_RATIO = 1.5
_FINE_ON_CPU = 20_000_000
"""Parameters that a processor trains in bearable time."""


def check_disk(manifest: RunManifest, state_dir: Path) -> Line:
    """Room for data, genesis and checkpoints."""
    blobs = (*manifest.data.shards, manifest.data.held_out, manifest.genesis.blob)
    needed = sum(blob.num_bytes for blob in blobs)
    needed += sum(manifest.sizes) * _BYTES_PER_PARAMETER_ON_DISK
    # Path.exists raises where a folder is closed to this user.
    places = (state_dir, *state_dir.resolve().parents)
    place = next(p for p in places if os.path.exists(p))  # noqa: PTH110  # as said
    if not place.is_dir():
        found = f"{place} is a file, a folder is needed there"
        return failure(DoctorCode.DISK, found, "choose another state_dir")
    if not os.access(place, os.W_OK | os.X_OK):
        found = f"this user may not write into {place}"
        return failure(DoctorCode.DISK, found, f"chown $USER {place}, or another state_dir")
    free = shutil.disk_usage(place).free
    found = f"{size_text(needed)} needed at {state_dir}, {size_text(free)} free"
    fix = "free some space, or choose another state_dir"
    return _graded(DoctorCode.DISK, needed, free, found, fix)


def check_memory(manifest: RunManifest) -> Line:
    """Memory for parameters, optimiser and a full gather."""
    needed = sum(manifest.sizes) * _BYTES_PER_PARAMETER_HELD
    needed += manifest.payload_bytes * manifest.outer.gather_limit
    available = _available_memory_bytes()
    if available is None:
        return warning(DoctorCode.MEMORY, "the free memory cannot be read", "look at `free -h`")
    found = f"{size_text(needed)} needed besides activations, {size_text(available)} available"
    return _graded(DoctorCode.MEMORY, needed, available, found, "use a machine with more memory")


def _graded(code: DoctorCode, needed: int, available: int, found: str, fix: str) -> Line:
    if available < needed:
        return failure(code, found, fix)
    if available < needed * _COMFORT_RATIO:
        return warning(code, found, fix)
    return ok(code, found)


def _available_memory_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(sizes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in sizes else None


def check_device(manifest: RunManifest, device: str) -> Line:
    """A GPU, where one is asked for."""
    if device == "cpu":
        found = f"training on the CPU, {sum(manifest.sizes):,} parameters"
        if sum(manifest.sizes) <= _FINE_ON_CPU:
            return ok(DoctorCode.GPU, found)
        return warning(DoctorCode.GPU, found, 'device = "cuda" in node.toml, if there is a GPU')
    import torch  # noqa: PLC0415  # seconds, and only needed here

    if not torch.cuda.is_available():
        return failure(
            DoctorCode.GPU,
            "torch sees no GPU",
            'install a CUDA build of torch and its driver, or set device = "cpu"',
        )
    free, total = torch.cuda.mem_get_info()
    needed = sum(manifest.sizes) * 4 * 4
    there = f"{size_text(free)} of {size_text(total)} free"
    found = f"{size_text(needed)} needed besides activations, {there}"
    return _graded(DoctorCode.GPU, needed, free, found, "use a GPU with more memory")
