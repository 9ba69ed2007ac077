"""The tests' own files."""

import collections
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def test_files_have_different_names():
    """pytest imports them as modules by name. A second file of the same name can't be collected in the same run."""
    names = collections.Counter(path.name for path in FOLDER.rglob("test_*.py"))
    assert {name for name, count in names.items() if count > 1} == set()
