import errno
import os

from shoal.storage.errors import StorageFullError, StorageUnavailableError
from shoal.storage.os_errors import storage_error


def test_a_full_disk_that_cannot_be_asked_has_nothing_free(tmp_path):
    error = OSError(errno.ENOSPC, "No space left on device")
    full = storage_error(error, tmp_path / "gone", "a")
    assert isinstance(full, StorageFullError)
    assert full.num_free_bytes == 0


def test_an_unknown_error_may_pass_and_is_worth_a_retry(tmp_path):
    error = storage_error(OSError("strange"), tmp_path, "")
    assert isinstance(error, StorageUnavailableError)
    assert str(error) == f"the store {tmp_path}: strange"


def test_the_message_names_folder_key_and_reason(tmp_path):
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    assert str(storage_error(error, tmp_path, "a/b")) == (
        f"object 'a/b' in the store {tmp_path}: Input/output error"
    )
