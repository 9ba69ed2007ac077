"""`ringloop.watch`. A callback that is to be reported holds the loop until it is: no test depends on how long anything takes."""

import asyncio
import ctypes
import logging
import pathlib
import re
import threading
import time

import pytest

import ringloop
import support

pytestmark = pytest.mark.ringloop_only

THRESHOLD_S = 0.02

# Looks of a watchdog in which it would have found something.
LOOKS = 20


class Reports(logging.Handler):
    """The reports that a watchdog has logged."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self._changed = threading.Condition()
        self.logger = logging.Logger("reports")
        self.logger.addHandler(self)

    def emit(self, record):
        with self._changed:
            self.texts.append(record.getMessage())
            self._changed.notify_all()

    def matching(self, pattern):
        return [text for text in self.texts if re.search(pattern, text)]

    def wait_for(self, pattern):
        """Wait until there is a report like this, and return it. Whoever calls this in a callback holds the loop."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.matching(pattern), support.PATIENCE_S), self.texts
        return self.matching(pattern)[0]


@pytest.fixture
def reports():
    return Reports()


@pytest.fixture
def watched(loop, reports):
    """Yield a loop that is watched."""
    with ringloop.watch(loop, threshold=THRESHOLD_S, logger=reports.logger):
        yield loop


def watching_thread():
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "ringloop watchdog"]
    return thread


def wait_for_looks(thread):
    """Wait until a watchdog's thread has looked some more times, after each of which it sleeps."""

    def sleeps():
        text = pathlib.Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", text, re.MULTILINE)[1])

    enough = sleeps() + LOOKS
    while sleeps() < enough:
        time.sleep(0.001)


def run(loop, *callbacks):
    for callback in callbacks:
        loop.call_soon(callback)
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_a_callback_is_reported_while_it_runs(watched, reports):
    def hold():
        reports.wait_for("in hold")

    before = watched.metrics().stalls
    run(watched, hold)
    report = reports.wait_for("in hold")
    assert re.match(r"A callback has held the event loop for \d+\.\d{3} s", report)
    assert "Its stack, with the most recent call last:\n" in report
    assert 'reports.wait_for("in hold")' in report
    # What runs the loop is not on the stack.
    assert "in run_forever" not in report
    assert "in run\n" not in report
    assert watched.metrics().stalls > before


def test_a_task_is_named_with_the_stack_of_all_its_coroutines(watched, reports):
    async def inner():
        reports.wait_for("in inner")

    async def outer():
        await asyncio.sleep(0)
        await inner()

    name = "a 'name'\n"

    async def main():
        await asyncio.create_task(outer(), name=name)

    watched.run_until_complete(main())
    report = reports.wait_for("in inner")
    assert report.startswith(f"The task {name!r} has held the event loop for ")
    assert re.search(r"in outer\n.*\n.*in inner\n", report)


def test_a_callback_is_counted_and_reported_once(watched, reports):
    def hold():
        reports.wait_for("in hold")
        before = watched.metrics().stalls
        wait_for_looks(watching_thread())
        assert watched.metrics().stalls == before
        assert len(reports.matching("in hold")) == 1

    contexts = support.capture_contexts(watched)
    run(watched, hold)
    assert not contexts


def test_what_comes_soon_after_a_report_is_counted_and_not_reported(watched, reports):
    def first():
        reports.wait_for("in first")

    def second():
        before = watched.metrics().stalls
        while watched.metrics().stalls == before:
            time.sleep(0.001)

    def third():
        reports.wait_for("in third")

    run(watched, first, second, third)
    # On a machine that is too slow for this, a second has gone by.
    assert reports.matching("in second") or "more since the last report)" in reports.wait_for("in third")


def test_one_that_goes_on_is_reported_when_the_second_is_over(watched, reports):
    def first():
        reports.wait_for("in first")

    def second():
        reports.wait_for("in second")

    run(watched, first, second)


def test_waiting_for_io_holds_nothing(loop_factory, reports):
    waiting = loop_factory()
    thread = support.BackgroundThread(waiting.run_forever)
    support.until_waiting(thread)
    # It waits, and does so until the end: nothing else runs in it.
    with ringloop.watch(waiting, threshold=0.001, logger=reports.logger):
        wait_for_looks(watching_thread())
        assert waiting.metrics().stalls == 0
    waiting.call_soon_threadsafe(waiting.stop)
    thread.result()
    waiting.close()
    assert not reports.texts


def test_a_loop_that_does_not_run_is_not_held(loop, reports):
    run(loop)
    with ringloop.watch(loop, threshold=0.001, logger=reports.logger):
        wait_for_looks(watching_thread())
    assert loop.metrics().stalls == 0
    assert not reports.texts


@pytest.mark.without_debug_mode
def test_a_callback_without_python_code(watched, reports):
    lock = threading.Lock()
    lock.acquire()

    def release():
        reports.wait_for("A callback has held .* s.*, in code that is not Python's$")
        lock.release()

    thread = support.BackgroundThread(release)
    run(watched, lock.acquire)
    thread.result()


def test_a_callback_that_keeps_the_gil_and_ends(watched, reports):
    sleep = ctypes.PyDLL(None).usleep
    deadline = time.monotonic() + support.PATIENCE_S
    # The watching thread may get no CPU meanwhile.
    while not reports.texts and time.monotonic() < deadline:
        run(watched, lambda: watched.call_soon(sleep, 10 * int(THRESHOLD_S * 1e6)))
        run(watched)
    text = reports.wait_for("ended before its stack could be taken|not Python's|in <lambda>")
    assert text.startswith("A callback has held the event loop for ")


def test_no_other_loop_can_be_watched():
    other = asyncio.SelectorEventLoop()
    try:
        with pytest.raises(
            TypeError, match=r"ringloop\.EventLoop, not asyncio\.unix_events\._UnixSelectorEventLoop; asyncio's"
        ):
            ringloop.watch(other)
    finally:
        other.close()


@pytest.mark.parametrize("threshold", [0, -1, float("nan"), float("inf"), 1e10])
def test_a_threshold_is_a_time(loop, threshold):
    with pytest.raises(ValueError, match="threshold must be a number of seconds above 0"):
        ringloop.watch(loop, threshold=threshold)


def test_a_loop_has_one_watchdog(loop):
    first = ringloop.watch(loop)
    assert type(first) is ringloop.Watchdog
    with pytest.raises(RuntimeError, match="watched already; close its other watchdog first"):
        ringloop.watch(loop)
    first.close()
    first.close()
    ringloop.watch(loop).close()


def test_it_ends_with_its_loop(loop):
    watchdog = ringloop.watch(loop, threshold=THRESHOLD_S)
    thread = watching_thread()
    loop.close()
    thread.join(support.PATIENCE_S)
    assert not thread.is_alive()
    watchdog.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        ringloop.watch(loop)


def test_it_is_closed_in_a_callback_that_it_has_reported(loop, reports):
    watchdog = ringloop.watch(loop, threshold=THRESHOLD_S, logger=reports.logger)

    def hold():
        reports.wait_for("in hold")
        watchdog.close()

    run(loop, hold)
    assert reports.matching("in hold")


def test_a_log_that_fails_ends_no_watchdog(loop, caplog):
    class Failing(Reports):
        def emit(self, record):
            super().emit(record)
            if len(self.texts) == 1:
                raise support.Oops("the log fails")

    reports = Failing()

    def hold():
        reports.wait_for("in hold")

    def hold_again():
        reports.wait_for("in hold_again")

    with ringloop.watch(loop, threshold=THRESHOLD_S, logger=reports.logger):
        run(loop, hold, hold_again)
    (record,) = [record for record in caplog.records if "could not report" in record.message]
    assert record.exc_info[0] is support.Oops


def test_its_reports_go_to_the_logger_of_asyncio(loop, caplog):
    reports = Reports()
    logging.getLogger("asyncio").addHandler(reports)
    try:
        with ringloop.watch(loop, threshold=THRESHOLD_S):
            run(loop, lambda: reports.wait_for("in <lambda>"))
    finally:
        logging.getLogger("asyncio").removeHandler(reports)
    record = next(record for record in caplog.records if "in <lambda>" in record.message)
    assert (record.name, record.levelname) == ("asyncio", "WARNING")


FORK = """
import os
import ringloop

async def nothing():
    pass

loop = new_loop()
watchdog = ringloop.watch(loop, threshold=0.001)
child = os.fork()
if child == 0:
    # The thread stays in the parent.
    watchdog.close()
    other = new_loop()
    with ringloop.watch(other, threshold=0.001):
        other.run_until_complete(nothing())
    other.close()
    print("child", flush=True)
else:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.run_until_complete(nothing())
    watchdog.close()
    loop.close()
    print("parent", flush=True)
"""


def test_a_fork_leaves_the_watchdog_to_the_parent(arm):
    child = support.run_child(FORK, arm, python_flags=("-W", "ignore"))
    assert (child.returncode, child.stdout) == (0, "child\nparent\n"), child.stderr


EXIT = """
import threading, time
import ringloop

def work(last, *arguments):
    loop = new_loop()
    kept.append((loop, ringloop.watch(loop, threshold=0.001)))
    loop.call_soon(time.sleep, 0.01)
    loop.call_soon(started.set)
    loop.call_soon(getattr(loop, last, None) or time.sleep, *arguments)
    loop.run_forever()

kept = []
started = threading.Event()
if sys.argv[1] == "main":
    work("stop")
else:
    threading.Thread(target=work, args=("sleep", 3600), daemon=True).start()
    started.wait()
print("end")
"""


@pytest.mark.parametrize("thread", ["main", "daemon"])
def test_a_program_ends_with_an_open_watchdog(arm, thread):
    child = support.run_child(EXIT, arm, thread, python_flags=("-W", "ignore"))
    assert (child.returncode, child.stdout) == (0, "end\n"), child.stderr
    assert "Fatal" not in child.stderr
    assert "Traceback" not in child.stderr
