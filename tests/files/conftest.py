"""Shared by the tests of files."""

import time

import pytest

import support


@pytest.fixture(autouse=True)
def workers_end():
    """Wait for the threads in which the epoll backend does what may block: they end soon after their loop is closed."""
    descriptors = support.open_descriptors()
    yield
    deadline = time.monotonic() + support.PATIENCE_S
    while support.open_descriptors() - descriptors and time.monotonic() < deadline:
        time.sleep(0.001)
