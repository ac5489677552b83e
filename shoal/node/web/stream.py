"""Server-sent events: a short memory of messages, handed to a bounded number of clients.

Guarantees: a client that comes back with the id of the last message it got (Last-Event-ID) gets
what it missed, or, if that is no longer known, a fresh whole state; a client that does not keep up
loses messages and gets a fresh state too: nobody's slowness costs memory.

Does not do: write to sockets.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MAX_CLIENTS = 16
MAX_QUEUED = 32
MAX_REMEMBERED = 64


class TooManyClientsError(Exception):
    """All places are taken."""


@dataclass(frozen=True, slots=True)
class Message:
    """One event as a client sees it."""

    kind: str
    id: str
    data: str

    def encode(self) -> bytes:
        """The wire form; `data` is one line, as JSON without indentation is."""
        return f"id: {self.id}\nevent: {self.kind}\ndata: {self.data}\n\n".encode()


@dataclass(slots=True, eq=False)
class Client:
    """One reader."""

    queue: deque[Message] = field(default_factory=deque)
    lost: bool = False
    """It missed something: what it needs next is the whole state."""
    closed: bool = False
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: Message) -> None:
        """Queues a message; a full queue is emptied instead."""
        if len(self.queue) >= MAX_QUEUED:
            self.queue.clear()
            self.lost = True
        elif not self.lost:
            self.queue.append(message)
        self._woken.set()

    def close(self) -> None:
        """Ends the reading."""
        self.closed = True
        self._woken.set()

    async def wait(self) -> None:
        """Until there is something to send or the stream is closed."""
        if not (self.queue or self.lost or self.closed):
            self._woken.clear()
            await self._woken.wait()


class Stream:
    """Hands messages to all clients; use it from one event loop only.

    Args:
        epoch: tells ids of this process from those of an earlier one.
        snapshot: the whole state as JSON, right now.
    """

    def __init__(self, epoch: str, snapshot: Callable[[], str]) -> None:
        self._epoch = epoch
        self._snapshot = snapshot
        self._number = 0
        self._remembered: deque[Message] = deque(maxlen=MAX_REMEMBERED)
        self._clients: set[Client] = set()
        self._closed = False

    @property
    def num_clients(self) -> int:
        """Who is reading."""
        return len(self._clients)

    def publish(self, kind: str, data: str) -> None:
        """Sends to everybody."""
        self._number += 1
        message = Message(kind, f"{self._epoch}-{self._number}", data)
        self._remembered.append(message)
        for client in self._clients:
            client.put(message)

    @contextmanager
    def client(self, last_id: str) -> Iterator[Client]:
        """A place in the stream, given back at the end.

        Args:
            last_id: Last-Event-ID as it came, or empty.

        Raises:
            TooManyClientsError: all places are taken.
        """
        if len(self._clients) >= MAX_CLIENTS or self._closed:
            raise TooManyClientsError
        client = Client()
        missed = self._missed(last_id)
        if missed is None:
            client.lost = True
        else:
            client.queue.extend(missed)
        self._clients.add(client)
        try:
            yield client
        finally:
            self._clients.discard(client)

    def next(self, client: Client) -> Message | None:
        """The next message for a client; None if there is nothing."""
        if client.lost:
            client.lost = False
            client.queue.clear()
            return Message("state", f"{self._epoch}-{self._number}", self._snapshot())
        return client.queue.popleft() if client.queue else None

    def close(self) -> None:
        """Ends all clients' reading."""
        self._closed = True
        for client in self._clients:
            client.close()

    def _missed(self, last_id: str) -> list[Message] | None:
        """What came after `last_id`; None if that cannot be told, or is too much to queue."""
        if last_id == f"{self._epoch}-{self._number}" and self._number:
            return []
        ids = [message.id for message in self._remembered]
        if last_id not in ids:
            return None
        missed = list(self._remembered)[ids.index(last_id) + 1 :]
        return missed if len(missed) <= MAX_QUEUED else None
