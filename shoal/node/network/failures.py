"""Errors of the process to messages, and messages to errors of the node.

Guarantees: the two sides agree; an error that is not one of ours crosses as "internal", with its
text and without its type.
"""

import logging
from typing import NoReturn

from shoal.node.network.errors import PeerUnavailableError, RecordRefusedError, WrongBytesError
from shoal.node.network.messages import FailCode, Failed
from shoal.protocol.errors import RemoteProtocolError
from shoal.storage.errors import ObjectNotFoundError, ObjectSizeError, StorageUnavailableError

_MAX_DETAIL_CHARS = 1024

_log = logging.getLogger(__name__)


def to_failure(error: Exception) -> Failed:
    """Say why a request was not done.

    Args:
        error: What it met.

    Returns:
        The answer.
    """
    match error:
        case ObjectNotFoundError():
            code = FailCode.NOT_FOUND
        case ObjectSizeError():
            code = FailCode.SIZE
        case WrongBytesError():
            code = FailCode.WRONG_BYTES
        case StorageUnavailableError() | OSError():
            code = FailCode.UNAVAILABLE
        case RemoteProtocolError():
            code = FailCode.REFUSED
        case ValueError():
            code = FailCode.BAD_REQUEST
        case _:
            _log.error("a request failed", exc_info=error)
            code = FailCode.INTERNAL
    detail = str(error) or type(error).__name__
    return Failed(code=code, detail=detail[:_MAX_DETAIL_CHARS])


def raise_failure(failed: Failed) -> NoReturn:
    """Say in our own terms why the process did not do it.

    Args:
        failed: Its answer.

    Raises:
        ObjectNotFoundError: The peer does not have the object.
        ObjectSizeError: It has one of another length.
        WrongBytesError: It sent other bytes.
        RecordRefusedError: Our record breaks a rule.
        ValueError: The request made no sense.
        PeerUnavailableError: Everything else.
    """
    match failed.code:
        case FailCode.NOT_FOUND:
            raise ObjectNotFoundError(failed.detail, "")
        case FailCode.SIZE:
            raise ObjectSizeError(failed.detail, "")
        case FailCode.WRONG_BYTES:
            raise WrongBytesError(failed.detail, "")
        case FailCode.REFUSED:
            raise RecordRefusedError(failed.detail, "")
        case FailCode.BAD_REQUEST:
            raise ValueError(failed.detail)
        case _:
            raise PeerUnavailableError(failed.detail, "")
