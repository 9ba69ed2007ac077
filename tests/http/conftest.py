"""Fixtures of these tests."""

import logging

import pytest

import serve_process
from serving import LOGGER


def pytest_collection_modifyitems(items):
    """Skip what is about a server with one thread, if servers have more."""
    if serve_process.THREADS is not None:
        for item in items:
            if item.get_closest_marker("one_thread"):
                item.add_marker(pytest.mark.skip(reason="this is about a server with one thread"))


@pytest.fixture
def errors(caplog):
    """Yield the errors that the server logs. One that a test doesn't look at fails it."""
    caplog.set_level(logging.INFO, LOGGER)

    def messages():
        found = [record.getMessage() for record in caplog.records if record.name == LOGGER]
        caplog.clear()
        return found

    yield messages
    assert not messages()
