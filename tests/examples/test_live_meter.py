"""The program of examples/live_meter, run as users run it."""

import os
import pty
import re
import signal
import subprocess
import sys

import pytest

import support
from support import names_the_slowest

PROGRAM = support.REPOSITORY / "examples" / "live_meter" / "meter.py"
LINE = re.compile(
    r"(?P<backend>io_uring|epoll) \| busy +\d+% \| +[\d,]+ callbacks/s \| [\d.]+ system calls each \| \d connections "
    r"\| \d+ ready \| \d+ timers( \| slowest (?P<ms>[\d.]+) ms: (?P<what>.+))?"
)
TOTAL = re.compile(r"[\d,]+ callbacks in [\d,]+ turns, [\d,]+ system calls on (io_uring|epoll)")

pytestmark = pytest.mark.ringloop_only


def start(*arguments, **options):
    """Start the meter, in development mode so that what it forgets to close shows on stderr."""
    return subprocess.Popen(
        [sys.executable, "-X", "dev", PROGRAM, "--interval", "0.05", "--connections", "3", *arguments],
        env={**os.environ, "PYTHONASYNCIODEBUG": "0"},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def finish(process):
    """Wait for its end; return its exit status and what it printed."""
    with process:
        try:
            stdout, stderr = process.communicate(timeout=support.PATIENCE_S)
        finally:
            process.kill()
    return process.returncode, (stdout or b"").decode(), (stderr or b"").decode()


@names_the_slowest
def test_a_pipe_gets_a_line_for_each_interval(arm):
    status, stdout, stderr = finish(start("--seconds", "1", "--slow-ms", "300", "--backend", arm))
    assert (status, support.unlogged(stderr)) == (0, "")
    *lines, total = stdout.splitlines()
    matches = [LINE.fullmatch(line) for line in lines]
    assert matches
    assert all(matches), stdout
    assert {match["backend"] for match in matches} == {arm}
    assert any(match["what"] and match["what"].startswith("block() at ") for match in matches), stdout
    assert TOTAL.fullmatch(total)


def test_a_terminal_gets_one_line_that_is_drawn_anew(arm):
    ours, theirs = pty.openpty()
    try:
        process = start("--seconds", "2", "--backend", arm, stdout=theirs)
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:
            pass  # The other side is closed: the program has ended.
        status, _, stderr = finish(process)
    finally:
        os.close(ours)
    assert (status, support.unlogged(stderr)) == (0, "")
    moving, total, rest = shown.decode().split("\r\n")
    assert rest == ""
    assert TOTAL.fullmatch(total)
    first, *drawn = moving.split("\r")
    assert first == ""
    assert drawn
    assert all(LINE.fullmatch(line.removesuffix("\x1b[K")) for line in drawn), moving


def test_an_interrupt_ends_it(arm):
    process = start("--seconds", "1000", "--backend", arm)
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    status, stdout, stderr = finish(process)
    assert LINE.fullmatch(first.decode().rstrip("\n")), (first, stderr)
    assert (status, support.unlogged(stderr)) == (0, "")
    assert TOTAL.fullmatch(stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--seconds", "0"], "'0' is not a number of seconds above 0"),
        (["--interval", "nan"], "'nan' is not a number of seconds above 0"),
        (["--connections", "-1"], "expected one argument|'-1' is not a whole number"),
        (["--slow-ms", "1.5"], "'1.5' is not a whole number"),
        (["--backend", "kqueue"], "invalid choice: 'kqueue'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text):
    status, stdout, stderr = finish(start(*arguments))
    assert (status, stdout) == (2, "")
    assert re.search(text, stderr)
