"""Random datagrams between endpoints are delivered as under asyncio."""

import contextlib
import os
import socket
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datagram_support import DatagramRecorder, close, drain, endpoint, unix_socket, wait_for
from support import (
    examples,
    finish,
    turns,
)
from support import loop_factory as factory_of

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.sampled_from([0, 1, 7, 1000, 4000, 20000])),
        st.tuples(st.just("reply"), st.integers(0, 5)),
        st.tuples(st.just("turns"), st.integers(1, 3)),
        st.tuples(st.just("pause")),
        st.tuples(st.just("resume")),
        st.tuples(st.just("raise")),
    ),
    max_size=40,
)


def traffic(loop, actions, folder):
    """Run the actions with three senders and one receiver; return what the receiver and the senders saw."""
    path = os.path.join(folder, "receiver")
    raising = []

    def on_datagram(_recorder, _data):
        if raising:
            raising.pop()
            raise ValueError

    reported = []
    loop.set_exception_handler(lambda _loop, context: reported.append(type(context["exception"]).__name__))
    receiver, recorder = endpoint(loop, DatagramRecorder(on_datagram), local_addr=path, family=socket.AF_UNIX)
    names = [os.path.join(folder, f"sender{number}") for number in range(3)]
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(unix_socket(name, path)) for name in names]
        for sender in senders:
            sender.setblocking(False)
        sent = 0
        for number, action in enumerate(actions):
            match action:
                case ("send", index, size):
                    with contextlib.suppress(BlockingIOError):
                        senders[index].send(number.to_bytes(2, "big") * size)
                        sent += 1
                case ("reply", back) if back < len(recorder.addresses):
                    receiver.sendto(b"reply %d" % number, recorder.addresses[-1 - back])
                case ("turns", count):
                    receiver.resume_reading()
                    # As many as it takes, so that it doesn't matter how many datagrams fit into a turn.
                    wait_for(loop, lambda: len(recorder.data) == sent)  # noqa: B023
                    loop.run_until_complete(turns(count))
                case ("pause",):
                    receiver.pause_reading()
                case ("resume",):
                    receiver.resume_reading()
                case ("raise",):
                    raising.append(True)
        receiver.resume_reading()
        wait_for(loop, lambda: len(recorder.data) == sent and not receiver._buffer)
        replies = [drain(sender) for sender in senders]
        events = recorder.events[:]
        close(loop, receiver)
    for name in (path, *names):
        os.unlink(name)
    return events, replies, reported


@pytest.mark.examples
@given(actions=ACTIONS)
@settings(
    deadline=None,
    database=None,
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.ringloop_only
def test_random_traffic_is_delivered_as_under_asyncio(arm, actions):
    with tempfile.TemporaryDirectory(prefix="udp") as folder:
        found = []
        for name in ("asyncio", arm):
            loop = factory_of(name)()
            try:
                found.append(traffic(loop, actions, folder))
            finally:
                finish(loop)
    assert found[0] == found[1]
