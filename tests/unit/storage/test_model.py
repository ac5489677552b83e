"""The directory store against a dictionary, over random histories."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from shoal.storage.directory import DirectoryStore
from shoal.storage.errors import ObjectExistsError, ObjectNotFoundError

# Few keys that nest in and sort between each other, so that histories meet.
KEYS = st.sampled_from(["a", "a/b", "a/b/c", "a.b", "a-b/c", "ab", "b"])
DATA = st.binary(max_size=8)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = DirectoryStore(Path(self.folder.name))
        self.model: dict[str, bytes] = {}

    @rule(key=KEYS, data=DATA, overwrite=st.booleans())
    def put(self, key, data, overwrite):
        try:
            asyncio.run(self.store.put(key, data, overwrite=overwrite))
        except ObjectExistsError:
            assert not overwrite
            assert key in self.model
        else:
            assert overwrite or key not in self.model
            self.model[key] = data

    @rule(key=KEYS, start=st.integers(0, 3))
    def get(self, key, start):
        try:
            data = asyncio.run(self.store.get(key, max_bytes=8, start=0))
        except ObjectNotFoundError:
            assert key not in self.model
        else:
            assert data == self.model[key]
            start = min(start, len(data))
            assert asyncio.run(self.store.get(key, max_bytes=8, start=start)) == data[start:]

    @rule(key=KEYS)
    def delete(self, key):
        asyncio.run(self.store.delete(key))
        self.model.pop(key, None)

    @rule(prefix=st.sampled_from(["", "a", "a/", "a/b", "b"]), after=st.none() | KEYS)
    def list(self, prefix, after):
        expected = sorted(k for k in self.model if k.startswith(prefix) and k > (after or ""))
        page = asyncio.run(self.store.list(prefix, after=after, limit=3))
        assert list(page.keys) == expected[:3]
        assert (page.next_after is None) == (len(expected) <= 3)

    @rule()
    def reopen(self):
        self.store = DirectoryStore(Path(self.folder.name))

    def teardown(self):
        self.folder.cleanup()


TestDirectoryStoreIsADictionary = StoreMachine.TestCase
TestDirectoryStoreIsADictionary.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None
)
