"""Fixtures of these tests."""

import tempfile

import pytest


@pytest.fixture
def folder():
    # pytest's own folders may be too long for the path of a Unix socket.
    with tempfile.TemporaryDirectory(prefix="udp") as name:
        yield name
