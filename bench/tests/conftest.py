"""The compiled programs, for the tests that need them."""

import pytest

from bench import measure


@pytest.fixture(scope="session")
def load_program():
    """The path of the load program, compiled."""
    measure.compile_programs()
    return str(measure.binary("load"))
