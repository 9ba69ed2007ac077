"""Every test body runs on stock asyncio (the control), on ringloop over io_uring and on ringloop over epoll.

A test that uses the fixture `arm`, `loop_factory`, `new_loop` or `loop` runs once for each of these arms. The environment variable
RINGLOOP_TEST_LOOPS, a comma-separated list of arms, selects fewer. If ringloop can't be imported, that is an error, never a skip.
"""

import asyncio
import collections
import functools
import gc
import os
import re
import signal
import socket
import sys
import threading

import hypothesis
import hypothesis.strategies
import pytest

pytest.register_assert_rewrite(
    "datagram_support",
    "descriptor_support",
    "differential",
    "files_support",
    "support",
    "tcp_support",
    "thread_support",
    "tls_support",
)

import support  # noqa: E402
import tls_support  # noqa: E402

support.heed_interrupts()

TEST_LONG = "long or examples"
"""The marks that `make test-long` selects."""

LONG_MARKS = {"examples", "long", "many_cases"}
"""The marks of its tests: `many_cases` becomes `long` for some of the cases."""


def selected_arms():
    """Return the arms to run, in a fixed order with the control first."""
    names = os.environ.get("RINGLOOP_TEST_LOOPS", ",".join(support.ARMS)).split(",")
    unknown = sorted(set(names) - set(support.ARMS))
    if unknown:
        raise pytest.UsageError(f"RINGLOOP_TEST_LOOPS: unknown {unknown}; use a comma-separated list of {support.ARMS}")
    return [arm for arm in support.ARMS if arm in names]


@functools.cache
def io_uring_refusal():
    """Return why io_uring cannot be used on this machine, or None where it can."""
    import ringloop

    loop = ringloop.new_event_loop(backend="auto")
    try:
        return None if loop.backend == "io_uring" else loop.backend_reason
    finally:
        loop.close()


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "ringloop_only: the body is about ringloop itself, stock asyncio has no such feature"
    )

    config.addinivalue_line(
        "markers",
        "any_backend(matters=False): the body is about ringloop itself, and the same on both backends: it runs on one, "
        "unless the argument says for a single test of a module that it does matter",
    )
    config.addinivalue_line(
        "markers",
        "without_debug_mode: the body is about a loop that is not in debug mode, whatever the environment says",
    )


@hypothesis.settings(max_examples=1, database=None, derandomize=True)
@hypothesis.given(hypothesis.strategies.none())
def use_hypothesis_once(_):
    """Make Hypothesis create its random number generator before objects are frozen: it checks who refers to it, and would warn."""


def pytest_collection_finish():
    """Hide pytest's thousands of test objects from the garbage collector: many tests collect, some hundreds of times."""
    use_hypothesis_once()
    gc.collect()
    gc.freeze()


@functools.cache
def may_be_long(path):
    """Return whether the text of a file has a mark of `make test-long`: reading it takes a fraction of the time of importing it."""
    return re.search(rf"\bmark\.({'|'.join(LONG_MARKS)})\b", path.read_text(encoding="utf-8")) is not None


def pytest_ignore_collect(collection_path, config):
    """Let `make test-long` import only the files that have tests for it."""
    if (
        config.getoption("markexpr") == TEST_LONG
        and collection_path.suffix == ".py"
        and not may_be_long(collection_path)
    ):
        return True
    return None


def check_that_marks_are_found(items):
    """Fail if a test is marked in another way than `may_be_long` looks for: `make test-long` would leave it out."""
    for item in items:
        if not may_be_long(item.path) and not LONG_MARKS.isdisjoint(mark.name for mark in item.iter_markers()):
            raise pytest.UsageError(
                f"{item.nodeid}: write its mark in full, for example @pytest.mark.long, in the test's own file"
            )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as long the cases that `many_cases` doesn't keep: of each test and arm it keeps some, spread over all of them."""
    check_that_marks_are_found(items)
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("many_cases"):
            cases[item.nodeid.partition("[")[0], item.callspec.params.get("arm")].append(item)
    for of_arm in cases.values():
        short = of_arm[0].get_closest_marker("many_cases").kwargs["short"]
        kept = {len(of_arm) * number // short for number in range(short)}
        for number, item in enumerate(of_arm):
            if number not in kept:
                item.add_marker("long")


def pytest_generate_tests(metafunc):
    if "arm" not in metafunc.fixturenames:
        return
    arms = selected_arms()
    if metafunc.definition.get_closest_marker("ringloop_only"):
        arms = [arm for arm in arms if arm != "asyncio"]
        any_backend = metafunc.definition.get_closest_marker("any_backend")
        if any_backend is not None and not any_backend.kwargs.get("matters", False):
            arms = arms[-1:]
    if not arms:
        reason = "about ringloop alone, and RINGLOOP_TEST_LOOPS leaves its arms out"
        arms = [pytest.param("none", marks=pytest.mark.skip(reason=reason))]
    metafunc.parametrize("arm", arms, indirect=True)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fail a test that leaves a descriptor, a thread, a running loop, a generator hook or a wakeup descriptor behind."""
    descriptors = support.open_descriptors()
    threads = set(threading.enumerate())
    hooks = sys.get_asyncgen_hooks()
    yield
    if support.open_descriptors() != descriptors:
        gc.collect()
    leaked = support.open_descriptors() - descriptors
    assert not leaked, f"descriptors left open: {leaked}"
    for thread in set(threading.enumerate()) - threads:
        thread.join(support.PATIENCE_S)
        assert not thread.is_alive(), f"thread left running: {thread}"
    assert asyncio._get_running_loop() is None
    assert sys.get_asyncgen_hooks() == hooks
    assert signal.set_wakeup_fd(-1) == -1


@pytest.fixture(autouse=True)
def debug_mode(request, monkeypatch):
    """Run tests in the debug mode that the environment asks for, except those marked `without_debug_mode`."""
    if request.node.get_closest_marker("without_debug_mode"):
        monkeypatch.setattr(support, "DEBUG_MODE_OFF", True)


@pytest.fixture
def arm(request, monkeypatch):
    """Return the name of the loop under test: "asyncio", "io_uring" or "epoll"."""
    name = request.param
    if name == "io_uring" and io_uring_refusal() is not None:
        pytest.skip(f"io_uring is refused on this machine: {io_uring_refusal()}")
    if name != "asyncio":
        monkeypatch.setenv("RINGLOOP_BACKEND", name)
    return name


@pytest.fixture
def loop_factory(arm):
    """Return a callable that makes an event loop of the arm under test; the caller closes it."""
    return support.loop_factory(arm)


@pytest.fixture
def new_loop(loop_factory):
    """Yield a `loop_factory` whose loops are finished and closed after the test."""
    loops = []

    def create():
        loops.append(loop_factory())
        return loops[-1]

    yield create
    for loop in loops:
        support.finish(loop)


@pytest.fixture
def loop(new_loop):
    """Return one event loop of the arm under test, closed after the test."""
    return new_loop()


@pytest.fixture
def refused_port():
    """Yield a port on which nobody listens, and which nobody else can get during the test."""
    with socket.socket() as sock:
        sock.bind((support.HOST, 0))
        yield sock.getsockname()[1]


@pytest.fixture
def contexts():
    """Return the TLS contexts of a server called "localhost" and of a client that trusts it."""
    return tls_support.tls_contexts("localhost")
