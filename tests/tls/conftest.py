"""Fixtures of these tests."""

import pytest

from tls_support import VERSIONS


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param
