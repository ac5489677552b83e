"""What a store can answer instead of doing what it was asked.

    StorageError(message, key)    the root, never raised itself
      ObjectNotFoundError         no whole object has this key
      ObjectExistsError           a create-once write found the key taken
      ObjectTooLargeError         more bytes than the caller allowed; nothing was read
      ObjectSizeError             another length than the one expected
      InvalidKeyError             the key is outside the alphabet of `keys`; code E_OBJECT_KEY
      AccessDeniedError           the store is there and refuses; asking again will not help
      RefusedError                a rule of the other side, or of ours, is broken; has its code
      StorageFullError            no room, or a quota is used up
      StorageUnavailableError     the store did not answer; the only one worth a retry

Guarantees: every failure of every store is one of these, caused by (`from`) whatever the store met;
the message says what was expected and what was found. They survive pickling.

Does not decide whether to retry: that is the caller's, who knows the deadline.
"""


class StorageError(Exception):
    """Root of all failures of a store; catch it, never raise it.

    Attributes:
        message: One sentence: what was expected, what was found.
        key: The key that was asked for; empty when the whole store is meant.
    """

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message, key)
        self.message = message
        self.key = key

    def __str__(self) -> str:
        return self.message


class ObjectNotFoundError(StorageError):
    """No whole object has this key."""


class ObjectExistsError(StorageError):
    """A create-once write found that the key is taken; what is there is untouched."""


class ObjectTooLargeError(StorageError):
    """The object or range has more bytes than the caller's limit; nothing was read."""


class ObjectSizeError(StorageError):
    """The object has another length than the one that was expected."""


class ObjectTooShortError(ObjectSizeError):
    """The object is shorter than it must be, by what the store says of it; nothing was read."""


class InvalidKeyError(StorageError):
    """The key, or the beginning of a key, breaks the rules in `keys`."""

    code = "E_OBJECT_KEY"


class AccessDeniedError(StorageError):
    """The store refuses: permissions, a read-only disk, something foreign in the key's place."""


class RefusedError(StorageError):
    """The object, or the way it was answered, breaks a rule; asking again will not help.

    Attributes:
        code: The rule, an E_... name.
    """

    def __init__(self, message: str, key: str, code: str) -> None:
        super().__init__(message, key)
        self.args = (message, key, code)
        self.code = code


class StorageFullError(StorageError):
    """The store has no room for the object; nothing of it is visible.

    Attributes:
        place: The folder, bucket or device that is full.
        num_free_bytes: What the store says is left, in bytes.
    """

    def __init__(self, message: str, key: str, place: str, num_free_bytes: int) -> None:
        super().__init__(message, key)
        self.args = (message, key, place, num_free_bytes)
        self.place = place
        self.num_free_bytes = num_free_bytes


class StorageUnavailableError(StorageError):
    """The store did not answer properly; the same call may succeed later."""
