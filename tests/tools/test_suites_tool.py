"""The judgement of the program behind `make suites`; the suites themselves are too large for these tests."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support import REPOSITORY, load_tool

TOOLS = REPOSITORY / "tools"
suites = load_tool("suites")


def python(*arguments, cwd, **environment):
    environment = os.environ | {"PYTHONPATH": str(TOOLS)} | environment
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_tests_are_named_as_pytest_names_them(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(
        textwrap.dedent(
            """
            import pytest

            @pytest.fixture
            def broken():
                yield
                raise OSError

            def test_passes(): pass

            def test_skipped(): pytest.skip("because")

            @pytest.mark.parametrize("value", ["a.b", "c::d"])
            def test_fails(value): assert not value

            class TestMany:
                class TestInner:
                    def test_passes(self): pass

                    def test_breaks_afterwards(self, broken): pass
            """
        )
    )
    options = [
        "--rootdir=.",
        "--disable-plugin-autoload",
        "--junitxml=report.xml",
        "--override-ini=junit_family=xunit1",
    ]
    assert python("-m", "pytest", *options, "tests", cwd=tmp_path).returncode == 1
    result = suites.read_junit(tmp_path / "report.xml")
    assert (result.passed, result.skipped) == (2, 1)
    assert result.failed == {
        "tests/test_some.py::test_fails[a.b]",
        "tests/test_some.py::test_fails[c::d]",
        "tests/test_some.py::TestMany::TestInner::test_breaks_afterwards",
    }

    assert python("-m", "pytest", *options, *result.failed, cwd=tmp_path).returncode == 1
    repeated = suites.read_junit(tmp_path / "report.xml")
    assert (repeated.passed, repeated.skipped, repeated.failed) == (0, 0, result.failed)


def test_tests_are_named_as_unittest_names_them(tmp_path):
    (tmp_path / "some.py").write_text(
        textwrap.dedent(
            """
            import unittest

            class Some(unittest.TestCase):
                def test_passes(self): pass

                def test_skipped(self): self.skipTest("because")

                def test_fails(self): self.fail()

                def test_raises(self):
                    "A line that unittest prints."
                    raise OSError
            """
        )
    )
    done = python("-m", "unittest", "some", cwd=tmp_path)
    result = suites.read_unittest(done.stderr)
    assert (result.passed, result.skipped) == (1, 1)
    assert result.failed == {"some.Some.test_fails", "some.Some.test_raises"}

    repeated = suites.read_unittest(python("-m", "unittest", *result.failed, cwd=tmp_path).stderr)
    assert (repeated.passed, repeated.failed) == (0, result.failed)


def test_output_without_a_result_is_refused():
    with pytest.raises(ValueError, match="how many tests ran"):
        suites.read_unittest("Segmentation fault\n")


class Repeating(suites.Runner):
    """A runner whose tests end as told when they are repeated."""

    def __init__(self, again):
        suite = suites.Suite("some", "Some", "1", [], [], [], explained={"explained": "it asks for asyncio's name"})
        super().__init__(suite, Path("/nowhere"), workers=1, limit_s=1)
        self.again = again

    def run(self, loop, tests=()):
        assert tests
        return suites.Result(0, 0, self.again.get(loop, set()) & set(tests))


@pytest.mark.parametrize("with_control", [True, False])
def test_only_what_fails_again_and_on_ringloop_alone_counts(with_control, capsys):
    results = {"epoll": suites.Result(1, 0, {"ours", "explained", "unsteady", "of the machine"})}
    if with_control:
        results["asyncio"] = suites.Result(1, 0, set())
    runner = Repeating({"epoll": {"ours", "of the machine"}, "asyncio": {"of the machine"}})
    assert suites.compare(runner, results) == {
        "epoll": {"explained": "explained", "ours": "FAILED", "of the machine": "not ours", "unsteady": "not again"}
    }
    assert capsys.readouterr().out.splitlines() == [
        "explained   some on epoll: explained: it asks for asyncio's name",
        "not ours    some on epoll: of the machine: fails on asyncio, too",
        "FAILED      some on epoll: ours",
        "not again   some on epoll: unsteady: passed 3 times by itself",
    ]


def test_what_fails_on_asyncio_is_not_repeated(capsys):
    shared = {"shared", "explained"}
    results = {"asyncio": suites.Result(1, 0, shared), "epoll": suites.Result(1, 0, shared)}
    assert suites.compare(Repeating({"epoll": {"shared"}}), results) == {"epoll": {}}
    assert capsys.readouterr().out == ""


def test_an_explanation_holds_for_all_parameters():
    suite = suites.Suite("some", "Some", "1", [], [], [], explained={"test_a": "all", "test_b[1]": "one"})
    assert [suite.explanation(name) for name in ("test_a", "test_a[1]", "test_b[1]", "test_b[2]", "test_ab")] == [
        "all", "all", "one", None, None,
    ]  # fmt: skip


def test_each_suite_is_described():
    settings = suites.read_settings()
    assert list(settings) == [
        "uvicorn", "serve", "gunicorn", "werkzeug", "flask", "bottle", "django", "aiohttp", "anyio", "tornado", "starlette",
        "websockets", "asyncpg", "aiofiles",
    ]  # fmt: skip
    assert settings["serve"].package == settings["uvicorn"].package == "uvicorn"
    for suite in settings.values():
        assert all("==" in requirement for requirement in suite.requirements)
        assert all(suite.explained.values())
        assert all((TOOLS / name).is_file() for name in (*suite.files, *(f"{plugin}.py" for plugin in suite.plugins)))


@pytest.mark.parametrize("name", ["asyncio", "epoll"])
def test_a_program_finds_the_loop_that_was_asked_for(name, tmp_path):
    (tmp_path / "program.py").write_text(
        "import asyncio, sys; loop = asyncio.new_event_loop(); print(type(loop).__module__, *sys.argv[1:]); loop.close()"
    )
    environment = {"RINGLOOP_SUITES_LOOP": name}
    if name != "asyncio":
        environment["RINGLOOP_BACKEND"] = name
    done = python("-m", "suite_loop", "program", "first", "second", cwd=tmp_path, **environment)
    module = "asyncio.unix_events" if name == "asyncio" else "ringloop._loop"
    assert (done.stdout, done.stderr) == (f"{module} first second\n", "")


def test_another_backend_than_the_one_that_was_asked_for_is_refused(tmp_path):
    done = python("-m", "suite_loop", "this", cwd=tmp_path, RINGLOOP_SUITES_LOOP="io_uring", RINGLOOP_BACKEND="epoll")
    assert done.returncode == 1
    assert "new loops are epoll's, and not io_uring's" in done.stderr
