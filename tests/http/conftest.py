"""Fixtures of these tests."""

import logging

import pytest

from serving import LOGGER


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
