import os

import pytest


@pytest.fixture
def no_fsync(monkeypatch):
    """No flush to the disk: it takes long on a busy machine, and no test can pull the plug."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
