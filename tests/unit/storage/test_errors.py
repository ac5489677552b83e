import pickle

import pytest

from shoal.storage import errors
from shoal.storage.errors import RefusedError, StorageError, StorageFullError

ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StorageError)
]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_says_its_message_and_survives_pickling(kind):
    more = {StorageFullError: ("/disk", 7), RefusedError: ("E_LEN",)}
    error = kind("what was found", "a/b", *more.get(kind, ()))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert (str(again), again.key) == ("what was found", "a/b")
    assert vars(again) == vars(error)
