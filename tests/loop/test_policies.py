"""The event loop policy, on Pythons that have policies: asyncio's own with another loop."""

import asyncio
import contextlib
import sys
import warnings
from asyncio import events

import pytest

import support

HAS_POLICIES = sys.version_info < (3, 16)
DEPRECATED = sys.version_info >= (3, 14)
HAS_CHILD_WATCHERS = sys.version_info < (3, 14)
NO_POLICIES = f"Python {sys.version_info.major}.{sys.version_info.minor} has no event loop policies"

needs_policies = pytest.mark.skipif(not HAS_POLICIES, reason=NO_POLICIES)


def make_policy(arm):
    """Return a policy that makes loops of this arm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if arm == "asyncio":
            return asyncio.DefaultEventLoopPolicy()
        import ringloop

        return ringloop.EventLoopPolicy()


@contextlib.contextmanager
def policy_of(arm):
    """Set such a policy, and asyncio's own after that."""
    policy = make_policy(arm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.set_event_loop_policy(policy)
    try:
        yield policy
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            asyncio.set_event_loop_policy(None)


async def running_loop():
    return asyncio.get_running_loop()


def is_of(arm, loop):
    """Return whether the loop is one of the arm's."""
    return getattr(loop, "backend", "asyncio") == arm


@needs_policies
def test_asyncio_makes_its_loops_by_the_policy(arm):
    with policy_of(arm):
        assert is_of(arm, asyncio.run(running_loop()))
        with asyncio.Runner() as runner:
            assert is_of(arm, runner.get_loop())
        loop = asyncio.new_event_loop()
        assert is_of(arm, loop)
        loop.close()
    assert is_of("asyncio", asyncio.run(running_loop()))


@needs_policies
def test_a_factory_wins_over_the_policy(arm):
    with policy_of(arm), asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        assert is_of("asyncio", runner.get_loop())


@pytest.mark.exact
@needs_policies
def test_a_loop_is_current_in_the_thread_that_set_it(arm):
    def ask():
        with pytest.raises(RuntimeError) as caught:
            asyncio.get_event_loop_policy().get_event_loop()
        messages = [str(caught.value)]
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
        assert is_of(arm, loop)
        asyncio.set_event_loop(None)
        loop.close()
        return messages

    with policy_of(arm), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        thread = support.BackgroundThread(ask)
        assert thread.result() == [f"There is no current event loop in thread {thread.name!r}."]
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
        asyncio.set_event_loop(None)
        loop.close()


@needs_policies
def test_what_is_no_loop_cannot_be_set(arm):
    def attempt(name):
        with policy_of(name) as policy, pytest.raises((TypeError, AssertionError)) as caught:
            policy.set_event_loop(42)
        return type(caught.value), str(caught.value)

    assert attempt(arm) == attempt("asyncio")


@needs_policies
def test_the_main_thread_without_a_loop(arm):
    """Up to Python 3.13 the policy makes one there, and warns from 3.12 on; later there is none."""

    def attempt(name):
        with policy_of(name) as policy, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                loop = policy.get_event_loop()
            except RuntimeError as error:
                return str(error)
            messages = [str(warning.message) for warning in caught]
            assert is_of(name, loop)
            policy.set_event_loop(None)
            loop.close()
            return messages

    assert attempt(arm) == attempt("asyncio")


@needs_policies
def test_each_policy_has_loops_of_its_own(arm):
    first, second = make_policy(arm), make_policy(arm)
    loop = first.new_event_loop()
    first.set_event_loop(loop)
    assert first.get_event_loop() is loop
    assert second._local._loop is None
    loop.close()


@pytest.mark.skipif(not HAS_CHILD_WATCHERS, reason="asyncio has no child watchers from Python 3.14 on")
def test_child_watchers_are_asyncios(arm):
    async def child():
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(7)")
        return await process.wait()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with policy_of("asyncio"):
            expected = type(asyncio.get_child_watcher())
        with policy_of(arm):
            assert type(asyncio.get_child_watcher()) is expected
            assert asyncio.run(child()) == 7
            watcher = asyncio.SafeChildWatcher()
            asyncio.set_child_watcher(watcher)
            assert asyncio.get_child_watcher() is watcher
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)  # Which attaches the watcher to it.
            assert loop.run_until_complete(child()) == 7
            watcher.close()
            asyncio.set_event_loop(None)
            loop.close()


@needs_policies
@pytest.mark.ringloop_only
def test_install_sets_the_policy(arm):
    child = support.run_child(
        """
        import warnings
        import ringloop
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ringloop.install()
        async def running_loop():
            return asyncio.get_running_loop()
        print(asyncio.run(running_loop()).backend)
        print([(str(warning.message), warning.category.__name__, warning.filename) for warning in caught])
        """,
        arm,
    )
    text = "'ringloop.install' is deprecated and slated for removal in Python 3.16"
    expected = [(text, "DeprecationWarning", "<string>")] if DEPRECATED else []
    assert (child.stdout, child.stderr) == (f"{arm}\n{expected}\n", "")


@needs_policies
@pytest.mark.ringloop_only
def test_asking_for_the_class_warns_where_asyncio_does(arm):
    import ringloop

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = ringloop.EventLoopPolicy
        from ringloop import install
    text = "'ringloop.EventLoopPolicy' is deprecated and slated for removal in Python 3.16"
    expected = [(text, DeprecationWarning, __file__)] if DEPRECATED else []
    assert [(str(warning.message), warning.category, warning.filename) for warning in caught] == expected
    assert repr(policy) == "<class 'ringloop.EventLoopPolicy'>"
    assert install is ringloop.install
    base = getattr(events, "_BaseDefaultEventLoopPolicy", None) or events.BaseDefaultEventLoopPolicy
    assert issubclass(policy, base)


@pytest.mark.ringloop_only
def test_without_policies_the_error_says_what_to_use(arm):
    """As Python 3.16 will be."""
    child = support.run_child(
        """
        from asyncio import unix_events
        for name in ("DefaultEventLoopPolicy", "_DefaultEventLoopPolicy"):
            if hasattr(unix_events, name):
                delattr(unix_events, name)
        import ringloop
        for name in ("EventLoopPolicy", "install", "nothing"):
            try:
                getattr(ringloop, name)
            except AttributeError as error:
                print(error)
        assert not hasattr(ringloop, "install")
        try:
            from ringloop import install
        except ImportError as error:
            print(type(error).__name__)
        """,
        arm,
    )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    reason = f"Python {version} has no event loop policies; use ringloop.run(), or loop_factory=ringloop.new_event_loop"
    assert child.stdout.splitlines() == [
        f"module 'ringloop' has no attribute 'EventLoopPolicy': {reason}",
        f"module 'ringloop' has no attribute 'install': {reason}",
        "module 'ringloop' has no attribute 'nothing'",
        "ImportError",
    ]
    assert child.stderr == ""


@needs_policies
@pytest.mark.ringloop_only
def test_importing_ringloop_warns_of_nothing(arm):
    child = support.run_child("from ringloop import *; print(1)", arm, python_flags=["-W", "error"])
    assert (child.stdout, child.stderr) == ("1\n", "")


@pytest.mark.exact
@needs_policies
def test_a_policy_serves_several_threads(arm):
    def run():
        return is_of(arm, asyncio.run(running_loop()))

    with policy_of(arm):
        threads = [support.BackgroundThread(run) for _ in range(4)]
        assert all(thread.result() for thread in threads)
