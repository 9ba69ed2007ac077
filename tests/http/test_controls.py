"""The servers that are controls: where a part of one is not installed, tests that need it are skipped, and do not fail."""

import asyncio
import sys
import types

import pytest

import http2
import serving


@pytest.mark.parametrize(
    ("kind", "installed", "missing"),
    [
        (serving.Server, "uvicorn", "httptools"),
        # As `make bench` leaves it.
        (serving.Server, "uvicorn httptools", "websockets"),
        (serving.Server, "httptools websockets", "uvicorn"),
        (http2.Server, "uvicorn httptools websockets", "hypercorn"),
    ],
)
def test_a_control_that_is_installed_in_part_is_none(monkeypatch, kind, installed, missing):
    for name in installed.split():
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    # An import of it now fails, as if it were not there.
    monkeypatch.setitem(sys.modules, missing, None)

    async def make():
        return kind("asyncio", None).make_control()

    with pytest.raises(pytest.skip.Exception, match="make test-applications installs the control"):
        asyncio.run(make())
