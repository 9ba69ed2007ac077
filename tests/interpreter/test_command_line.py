"""`python -m ringloop`."""

import json
import platform
import subprocess
import sys

import pytest

import support

ringloop_only = pytest.mark.ringloop_only

MODULE = """
import runpy
sys.argv[:] = ["ringloop", *sys.argv[1:]]
{before}
runpy.run_module("ringloop", run_name="__main__", alter_sys=True)
"""


def run(arm, *arguments, before="", **environment):
    """Run the module with arguments, in this environment, after some code."""
    # Whatever the environment of the tests says.
    environment = {
        "RINGLOOP_BACKEND": None,
        "RINGLOOP_BUSY_POLL": None,
        "RINGLOOP_TEST_LOOPS": None,
        "RINGLOOP_TEST_EXAMPLES": None,
        **environment,
    }
    return support.run_child(
        MODULE.format(before=before), arm, *arguments, env=environment, python_flags=("-W", "error")
    )


def facts(arm, *arguments, status=0, **options):
    child = run(arm, "--json", *arguments, **options)
    assert (child.returncode, child.stderr) == (status, "")
    return json.loads(child.stdout)


@ringloop_only
def test_it_says_what_there_is(arm):
    import ringloop

    loop = ringloop.new_event_loop(backend=arm)
    loop.close()
    found = facts(arm, RINGLOOP_BACKEND=arm)
    assert found["version"] == ringloop.__version__
    assert found["python"] == platform.python_version()
    assert found["kernel"] == platform.release()
    assert found["backend"] == arm
    assert found["backend_reason"] == loop.backend_reason.replace("the configuration", "RINGLOOP_BACKEND")
    assert found["environment"] == {"RINGLOOP_BACKEND": arm}
    text = run(arm, RINGLOOP_BACKEND=arm)
    assert (text.returncode, text.stderr) == (0, "")
    for value in (
        found["version"],
        found["python"],
        found["kernel"],
        found["backend_reason"],
        found["busy_poll_effect"],
    ):
        assert value in text.stdout


@ringloop_only
def test_as_a_user_calls_it(arm):
    for arguments, words in (
        ((), ("ringloop", "backend", "busy polling")),
        (("--help",), ("usage: python -m ringloop", "--check", "--json", "RINGLOOP_BACKEND")),
        (("--version",), ("ringloop ",)),
    ):
        child = subprocess.run(
            [sys.executable, "-m", "ringloop", *arguments], capture_output=True, text=True, timeout=support.PATIENCE_S
        )
        assert (child.returncode, child.stderr) == (0, "")
        for word in words:
            assert word in child.stdout


@ringloop_only
@pytest.mark.parametrize(
    ("busy_poll", "words"),
    [("off", "sleeps at once"), ("0", "sleeps at once"), ("50", "polls for 50 us"), ("adaptive", "this pays")],
)
def test_it_says_how_a_loop_would_wait(arm, busy_poll, words):
    found = facts(arm, RINGLOOP_BUSY_POLL=busy_poll, before="import os; os.sched_getaffinity = lambda process: {0, 1}")
    assert found["busy_poll"] == busy_poll
    assert found["cpus"] == 2
    assert words in found["busy_poll_effect"]


@ringloop_only
def test_with_one_cpu_nothing_polls_adaptively(arm):
    found = facts(arm, before="import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})")
    assert found["cpus"] == 1
    assert "one CPU" in found["busy_poll_effect"]


@pytest.mark.many_cases(short=1)
@ringloop_only
@pytest.mark.parametrize("call", ["io_uring_setup", "io_uring_enter", "io_uring_register"])
def test_check_fails_where_io_uring_is_refused(arm, call):
    support.needs_seccomp()
    before = f"support.refuse_io_uring(1, {call!r})"
    found = facts(arm, "--check", before=before, status=1)
    assert not found["io_uring"]
    assert found["io_uring_reason"].startswith(f"{call} was refused with EPERM")
    assert (found["backend"], found["backend_reason"]) == ("epoll", f"epoll: {found['io_uring_reason']}")
    # Without the check it is a fact like others, also where no loop can be made.
    assert facts(arm, before=before)["backend"] == "epoll"
    forced = facts(arm, before=before, RINGLOOP_BACKEND="io_uring")
    assert forced["backend"] is None
    assert "RINGLOOP_BACKEND" in forced["backend_reason"]
    text = run(arm, "--check", before=before, RINGLOOP_BACKEND="io_uring")
    assert (text.returncode, text.stderr) == (1, "")
    assert f"refused: {call}" in text.stdout


@ringloop_only
def test_check_succeeds_where_io_uring_is_granted(arm):
    """Also where the environment asks for epoll."""
    if arm == "io_uring":
        for backend in ("auto", "epoll", "io_uring"):
            assert facts(arm, "--check", RINGLOOP_BACKEND=backend)["io_uring"]


@ringloop_only
def test_mistakes(arm):
    for options, words in (
        ({"RINGLOOP_BACKEND": "kqueue"}, "RINGLOOP_BACKEND: unknown backend"),
        ({"RINGLOOP_BUSY_POLL": "often"}, "RINGLOOP_BUSY_POLL: 'often'"),
    ):
        child = run(arm, **options)
        assert (child.returncode, child.stdout) == (2, "")
        assert words in child.stderr and "Traceback" not in child.stderr
    child = run(arm, "--frobnicate")
    assert (child.returncode, child.stdout) == (2, "")
    assert "usage:" in child.stderr


@ringloop_only
def test_without_descriptors_it_says_so(arm):
    child = run(
        arm, before="import json, platform, resource, ringloop; resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))"
    )
    assert (child.returncode, child.stdout) == (1, "")
    assert child.stderr == "ringloop: no loop can be made: Too many open files\n"
