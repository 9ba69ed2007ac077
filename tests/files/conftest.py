"""Shared by the tests of files."""

import os
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


@pytest.fixture
def run(loop):
    """Run a coroutine on the loop under test."""
    return loop.run_until_complete


@pytest.fixture
def fifo(tmp_path):
    """Yield a FIFO, and its two ends as descriptors."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield path, end
    os.close(end)
