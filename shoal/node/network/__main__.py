"""`python -m shoal.node.network FD`: the network process, started by `supervisor` and nobody else.

FD is the process's end of a socket pair. The process ends when the other end is closed, however
that happens; it leads a process group of its own, and what is left in it is ended with it.
"""

import asyncio
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from shoal.node.file_limit import raise_file_limit
from shoal.node.network import frames, messages, packing
from shoal.node.network.daemon import EXIT_BAD_FRAME, EXIT_OK, Daemon
from shoal.node.network.errors import FrameError
from shoal.node.network.failures import to_failure
from shoal.node.network.frames import Frame, FrameKind
from shoal.node.network.sockets import drop_folder, sockets_folder
from shoal.protocol.errors import RemoteProtocolError

EXIT_NO_START: Final = 4
LOG_NAME: Final = "network.log"
MAX_LOG_BYTES: Final = 2 * 1024 * 1024
MAX_FILES: Final = 65_536
_GRACE_S: Final = 5.0

_log = logging.getLogger(__name__)


def main() -> int:
    """Run the process.

    Returns:
        The exit status.
    """
    raise_file_limit(MAX_FILES)
    node = socket.socket(fileno=int(sys.argv[1]))
    _end_with(node)
    try:
        return asyncio.run(_run(node))
    except KeyboardInterrupt:
        return EXIT_OK
    finally:
        _end_group()


async def _run(node: socket.socket) -> int:
    reader, writer = await asyncio.open_connection(sock=node)
    try:
        frame = await frames.read_frame(reader)
        if frame is None:
            return EXIT_OK
        return await _be(_to_start(frame), frame.request_id, reader, writer)
    except FrameError:
        _log.exception("the node's side of the connection")
        return EXIT_BAD_FRAME


async def _be(
    options: messages.Start,
    request_id: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> int:
    try:
        _log_to(Path(options.folder) / LOG_NAME)
        sockets = sockets_folder(options.folder)
        try:
            return await Daemon(options, reader, writer).run(request_id, sockets)
        finally:
            drop_folder(sockets)
    except (OSError, ValueError, RemoteProtocolError) as error:
        _log.exception("the network process cannot run")
        body = packing.pack(to_failure(error))
        await frames.write_frame(writer, Frame(FrameKind.ANSWER, request_id, body))
        return EXIT_NO_START


def _to_start(frame: Frame) -> messages.Start:
    request = packing.unpack_request(frame.body)
    if frame.kind is not FrameKind.REQUEST or not isinstance(request, messages.Start):
        raise FrameError("the first frame says what to be")
    return request


def _log_to(path: Path) -> None:
    """Log to a file that stays small, whatever others make us say."""
    handler = RotatingFileHandler(path, maxBytes=MAX_LOG_BYTES, backupCount=1, encoding="utf-8")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", handlers=[handler])


def _end_with(node: socket.socket) -> None:
    """End the process some seconds after its node, even if the loop hangs."""
    descriptor = node.fileno()

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)
        poll.poll()
        time.sleep(_GRACE_S)
        _end_group()
        os._exit(EXIT_OK)

    threading.Thread(target=watch, daemon=True).start()


def _end_group() -> None:
    """End p2pd, should it be there still: a start that was broken off leaves it behind."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
