"""The programs of docs/files.md and docs/streams.md, run as they are written there, on each backend."""

import os
import re
import subprocess
import sys

import pytest

import support

BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PRINTED = {
    "files.md": {
        "lines.py": "hello\ngood day\ngood night\n",
        "migrated.py": "10 True\n",
        "paths.py": "first.txt remember\n",
        "records.py": "[b'record 007\\n', b'record 500\\n', b'record 999\\n']\n",
    },
    "streams.md": {
        "limits.py": "too long: 1000\nb'\\n' 1000\nthe end: b''\n",
        "lines.py": "b'HELLO\\n' b'GOOD NIGHT\\n'\n",
        "subclass.py": "b'good morning\\n' 13 CountingReader\n",
    },
}

pytestmark = pytest.mark.ringloop_only


def programs(page):
    return dict(BLOCK.findall((support.REPOSITORY / "docs" / page).read_text()))


@pytest.mark.parametrize("page", PRINTED)
def test_each_program_is_known(page):
    assert programs(page).keys() == PRINTED[page].keys()


@pytest.mark.parametrize(("page", "title"), [(page, title) for page in PRINTED for title in PRINTED[page]])
def test_programs_of_the_guide(arm, tmp_path, page, title):
    (tmp_path / title).write_text(programs(page)[title])
    done = subprocess.run(
        [sys.executable, "-W", "error", title],
        cwd=tmp_path,
        env={**os.environ, "RINGLOOP_BACKEND": arm},
        capture_output=True,
        text=True,
        check=False,
        timeout=support.PATIENCE_S,
    )
    assert (done.stdout, support.unlogged(done.stderr), done.returncode) == (PRINTED[page][title], "", 0)
