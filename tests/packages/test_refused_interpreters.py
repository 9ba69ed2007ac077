"""Building for an interpreter that ringloop can't run on ends with a message that says why. Each case compiles for a while."""

import os
import shutil
import subprocess

import pytest

from support import REPOSITORY


@pytest.mark.parametrize(
    ("interpreter", "text"),
    [
        ("CPython\nversion=3.13\nbuild_flags=Py_GIL_DISABLED",
         "ringloop needs the GIL or Python 3.14 or later; this is a free-threaded Python 3.13"),
        ("CPython\nversion=3.10", "ringloop needs Python 3.11 or later; this is 3.10"),
        ("PyPy\nversion=3.11", "ringloop needs CPython; this is PyPy"),
    ],
)  # fmt: skip
def test_an_interpreter_that_it_cannot_be_built_for(tmp_path, interpreter, text):
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    config = tmp_path / "config"
    config.write_text(f"implementation={interpreter}\nshared=true\npointer_width=64\n")
    environment = {
        **os.environ,
        "PYO3_CONFIG_FILE": str(config),
        "CARGO_TARGET_DIR": str(REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target") / "refusal"),
    }
    command = ["cargo", "check", "--offline", "--locked", "--quiet", "--package", "ringloop-python"]
    built = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode != 0
    errors = [line for line in built.stderr.splitlines() if line.startswith("error: ringloop-python@")]
    assert [error.partition(": ringloop-python@")[2].partition(": ")[2] for error in errors] == [text], built.stderr
