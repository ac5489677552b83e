"""Keeps one network process running.

It is started with exec, never by fork, in a session of its own; its one connection is a socket pair
that nobody else can open and that leaves no file behind. When it ends, or does not answer two pings
in a row, it and everything in its group is ended and a new one is started, after a pause that grows
while it keeps failing.

Guarantees: at most one process at a time; after `stop`, and also after the sudden end of the node,
neither it nor p2pd is left.
"""

import asyncio
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from shoal.node.network.connection import Connection, ConnectionLostError
from shoal.node.network.errors import PeerUnavailableError
from shoal.node.network.messages import Answer, Ping, Request, Start, Status
from shoal.storage.errors import StorageError

ERRORS_NAME: Final = "network.stderr"
"""What the last process wrote before and outside its log, `network.log`."""
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 0.1
_PING_EVERY_S: Final = 5.0
_PING_TIMEOUT_S: Final = 15.0
_MAX_FAILED_PINGS: Final = 2
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0
_HEALTHY_S: Final = 60.0
# One process for the network: torch comes with hivemind, but computes nothing here.
_ENVIRONMENT: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "HIVEMIND_LOGLEVEL": "WARNING",
}

_log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=Answer)
StartedHook = Callable[[Connection, Status], Awaitable[None]]
"""Called with every new connection before others may use it."""


class Supervisor:
    """Starts, watches and restarts the process.

    Args:
        options: What the process is to be.
        on_started: Tells a new process what the last one knew.

    Attributes:
        num_starts: How often a process was started.
        last_failure: Why the last one ended or did not start; empty at first.
    """

    def __init__(self, options: Start, on_started: StartedHook) -> None:
        self._options = options
        self._on_started = on_started
        self._folder = Path(options.folder)
        self._running: asyncio.Task[None] | None = None
        self._connection: asyncio.Future[Connection] | None = None
        self.num_starts = 0
        self.last_failure = ""

    def start(self) -> None:
        """Begin to keep a process running; returns at once.

        Raises:
            OSError: The folder cannot be made.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        self._connection = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run())

    async def connection(self, timeout_s: float) -> Connection:
        """Wait for a process that is ready.

        Args:
            timeout_s: How long.

        Returns:
            The connection to it.

        Raises:
            PeerUnavailableError: There is none in time; the message says why.
        """
        if self._connection is None:
            raise PeerUnavailableError("the network is not started", "")
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._connection)
        except TimeoutError as error:
            text = f"no network process within {timeout_s:.0f} s; {self.last_failure}"
            raise PeerUnavailableError(text, "") from error

    async def ask(self, request: Request, kind: type[AnswerT], timeout_s: float) -> AnswerT:
        """Ask the process, and the next one if it ends before it answers.

        Args:
            request: What may be done twice.
            kind: What the answer is.
            timeout_s: For all of it.

        Returns:
            The answer.

        Raises:
            PeerUnavailableError: No answer in time.
            StorageError: As the answer says.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    connection = await self.connection(timeout_s)
                    try:
                        answer = await connection.ask(request, timeout_s)
                        break
                    except ConnectionLostError:
                        await asyncio.sleep(_AGAIN_S)
        except TimeoutError as error:
            text = f"{type(request).__name__}: not done in {timeout_s:.0f} s; {self.last_failure}"
            raise PeerUnavailableError(text, "") from error
        if not isinstance(answer, kind):
            raise PeerUnavailableError(f"answered with {type(answer).__name__}", "")
        return answer

    async def stop(self) -> None:
        """End the process; idempotent."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
            self._running = None
        if self._connection is not None:
            self._connection.cancel()
            self._connection = None

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            started_at_s = loop.time()
            self.last_failure = await self._run_once()
            _log.warning("the network process ended: %s", self.last_failure)
            healthy = loop.time() - started_at_s > _HEALTHY_S
            pause_s = _FIRST_PAUSE_S if healthy else min(pause_s * 2, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    async def _run_once(self) -> str:
        """Run one process from start to end and say why it ended."""
        try:
            process, connection = await self._spawn()
        except OSError as error:
            return f"it cannot be started: {error}"
        self.num_starts += 1
        try:
            status = await connection.ask(self._options, START_TIMEOUT_S)
            if not isinstance(status, Status):
                return "it does not say what it is"
            await self._on_started(connection, status)
            self._offer(connection)
            return await self._watch(process, connection)
        except (StorageError, ValueError) as error:
            return f"{error}; more is in {self._folder}/network.*"
        finally:
            self._withdraw()
            connection.close()
            await _end(process)

    async def _watch(self, process: asyncio.subprocess.Process, connection: Connection) -> str:
        failed = 0
        ended = asyncio.create_task(connection.ended())
        try:
            while failed < _MAX_FAILED_PINGS:
                await asyncio.wait((ended,), timeout=_PING_EVERY_S)
                if ended.done():
                    return f"the connection ended (status {process.returncode})"
                try:
                    await connection.ask(Ping(), _PING_TIMEOUT_S)
                    failed = 0
                except StorageError as error:
                    failed += 1
                    _log.warning("ping of the network process: %s", error)
        finally:
            ended.cancel()
        return f"{failed} pings without an answer"

    async def _spawn(self) -> tuple[asyncio.subprocess.Process, Connection]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs, (self._folder / ERRORS_NAME).open("wb") as errors:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "shoal.node.network",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    env={**os.environ, **_ENVIRONMENT},
                )
        except BaseException:
            ours.close()
            raise
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            await _end(process)
            raise
        return process, Connection(reader, writer)

    def _offer(self, connection: Connection) -> None:
        if self._connection is not None and not self._connection.done():
            self._connection.set_result(connection)

    def _withdraw(self) -> None:
        if self._connection is not None and self._connection.done():
            self._connection = asyncio.get_running_loop().create_future()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and its group: by the closed connection, else by force."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        _log.warning("the network process does not end by itself")
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            _log.debug("nothing is left of the network process")
        # Also where this is broken off: who stops the node must not leave it to nobody.
        await process.wait()
