"""The files that `make test-long` collects."""

import re
import types

import pytest

from support import REPOSITORY


@pytest.fixture
def plugin(request):
    """Return tests/conftest.py."""
    path = str(REPOSITORY / "tests" / "conftest.py")
    return next(each for each in request.config.pluginmanager.get_plugins() if getattr(each, "__file__", None) == path)


def test_it_reads_only_files_with_its_marks(plugin, tmp_path):
    (tmp_path / "marked.py").write_text("@pytest.mark.many_cases(short=2)")
    (tmp_path / "plain.py").write_text("@pytest.mark.longer")
    ignored = {}
    for expression in (plugin.TEST_LONG, "not long", ""):
        config = types.SimpleNamespace(getoption={"markexpr": expression}.get)
        names = ("marked.py", "plain.py", ".")
        ignored[expression] = [name for name in names if plugin.pytest_ignore_collect(tmp_path / name, config)]
    assert ignored == {plugin.TEST_LONG: ["plain.py"], "not long": [], "": []}
    assert f"-m '{plugin.TEST_LONG}'" in (REPOSITORY / "Makefile").read_text()


@pytest.mark.parametrize("mark", ["long", "many_cases", "examples"])
def test_a_mark_that_it_would_not_find_is_refused(plugin, tmp_path, mark):
    path = tmp_path / "plain.py"
    path.write_text("from elsewhere import slow")
    marks = [pytest.mark.exact, getattr(pytest.mark, mark)]
    item = types.SimpleNamespace(nodeid="plain.py::test", path=path, iter_markers=lambda: marks)
    with pytest.raises(pytest.UsageError, match=re.escape("plain.py::test: write its mark in full")):
        plugin.check_that_marks_are_found([item])
