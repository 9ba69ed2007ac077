"""The cases of tools/asgi_conformance.py, which compares what applications see with ASGI's specification."""

import subprocess
import sys

import pytest

import support

TOOL = support.REPOSITORY / "tools" / "asgi_conformance.py"


@pytest.mark.long
@pytest.mark.ringloop_only
@pytest.mark.any_backend(matters=True)
def test_the_specification_is_followed(arm):
    done = subprocess.run(
        [sys.executable, TOOL, "--server", f"ringloop {arm}"],
        capture_output=True,
        text=True,
        timeout=2 * support.PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cases" in done.stdout
