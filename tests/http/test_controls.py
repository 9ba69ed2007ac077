"""The servers that are controls: where a part of one is not installed, tests that need it are skipped, and do not fail."""

import asyncio
import sys

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
def test_a_control_that_is_installed_in_part_is_none(monkeypatch, tmp_path, kind, installed, missing):
    for name in installed.split():
        (tmp_path / f"{name}.py").touch()
        for module in [one for one in sys.modules if one.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(str(tmp_path))
    # An import of it now fails, as if it were not there.
    monkeypatch.setitem(sys.modules, missing, None)

    async def make():
        return kind("asyncio", None).make_uvicorn()

    with pytest.raises(pytest.skip.Exception, match="make test-applications installs the control"):
        asyncio.run(make())
