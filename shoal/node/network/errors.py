"""What can go wrong between the node, its network process and other peers.

    FrameError               bytes on the local socket that are no frame or no message
    NetworkError             never raised itself; each is also a `StorageError`
      PeerUnavailableError   no peer, no answer in time, too slow, busy: the same may succeed later
      WrongBytesError        the bytes that came are not the object that was asked for
      RecordRefusedError     our own record breaks the rules that every DHT node applies

A missing object is `storage.errors.ObjectNotFoundError`, another length `ObjectSizeError`.
"""

from shoal.storage.errors import StorageError, StorageUnavailableError


class FrameError(Exception):
    """Bytes that are no frame or no message; the connection they came over is given up."""


class NetworkError(StorageError):
    """Root of what only the network can answer; catch it, never raise it."""


class PeerUnavailableError(NetworkError, StorageUnavailableError):
    """Nobody who has it answered properly; trying again later makes sense."""


class WrongBytesError(NetworkError, StorageUnavailableError):
    """Somebody sent bytes that are not the object; another peer may have the right ones."""


class RecordRefusedError(NetworkError):
    """A record of ours was refused; the message begins with the code of the protocol."""
