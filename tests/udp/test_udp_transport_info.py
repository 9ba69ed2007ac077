"""The information that a datagram transport gives about itself: extra information, its `repr`, debug mode, audit events."""

import asyncio
import logging

import pytest

from datagram_support import DatagramRecorder, address_of, close, drain, echo, endpoint, full_pair, udp_socket, wait_for
from support import (
    HOST,
    run_child,
    same_as_asyncio,
)


def test_extra_info(loop_factory):
    def body(loop):
        with udp_socket() as peer:
            connected, _ = endpoint(loop, remote_addr=peer.getsockname())
            free, _ = endpoint(loop)
            assert connected.get_extra_info("peername") == peer.getsockname()
            assert connected.get_extra_info("sockname")[0] == HOST
            found = [
                free.get_extra_info("peername"),
                free.get_extra_info("unknown"),
                free.get_extra_info("unknown", "default"),
                type(free.get_extra_info("socket")).__name__,
                free.get_extra_info("socket").type,
                isinstance(free, asyncio.DatagramTransport),
                isinstance(free, asyncio.BaseTransport),
                isinstance(free, asyncio.Transport),
            ]
            close(loop, connected, free)
            found += [free.get_extra_info("sockname")[0], free.is_closing(), free.get_write_buffer_size()]
            return found

    same_as_asyncio(body, loop_factory)


def test_repr(loop_factory):
    def body(loop):
        ours, peer, _ = full_pair()
        with peer:
            transport, recorder = endpoint(loop, sock=ours)
            shown = [repr(transport)]
            transport.pause_reading()
            shown.append(repr(transport))
            transport.resume_reading()
            transport.sendto(b"12345")
            shown.append(repr(transport).replace("bufsize=13", "bufsize=5"))
            transport.close()
            shown.append(repr(transport).replace("bufsize=13", "bufsize=5"))
            wait_for(loop, lambda: (drain(peer) and False) or recorder.lost)
            shown.append(repr(transport))
        fd = f"fd={transport._sock_fd}"
        return [text.replace("_Selector", "").replace(fd, "fd=N") for text in shown]

    shown = same_as_asyncio(body, loop_factory)
    assert shown[0] == "<DatagramTransport fd=N read=polling write=<idle, bufsize=0>>"
    assert shown[2] == "<DatagramTransport fd=N read=polling write=<polling, bufsize=5>>"


def test_the_descriptor_belongs_to_the_transport(loop):
    transport, _ = endpoint(loop)
    sock = transport.get_extra_info("socket")
    for method in (loop.add_reader, loop.add_writer):
        with pytest.raises(RuntimeError) as caught:
            method(sock.fileno(), print)
        assert str(caught.value) == f"File descriptor {sock.fileno()} is used by transport {transport!r}"
    close(loop, transport)


def test_attributes_can_be_set(loop):
    transport, _ = endpoint(loop)
    transport.mine = "something"
    assert transport.mine == "something"
    close(loop, transport)


def test_debug_mode(loop, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0
    caplog.set_level(logging.DEBUG, "asyncio")
    server, service = endpoint(loop, DatagramRecorder(echo))
    client, recorder = endpoint(loop, remote_addr=address_of(server))
    client.sendto(b"x")
    wait_for(loop, lambda: recorder.data)
    client.pause_reading()
    client.resume_reading()
    close(loop, server, client)
    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith("Datagram endpoint local_addr=") for message in messages)
    assert any(message.startswith("Executing ") and "DatagramTransport" in message for message in messages)
    assert [message.rsplit("> ")[-1] for message in messages if message.endswith("reading")] == [
        "pauses reading",
        "resumes reading",
    ]


def test_audit_hooks_hear_of_sendto(arm, loop_factory):
    """A hook sees each address that something is sent to, whoever makes the system call."""
    source = """
        import socket
        heard = []
        def hook(event, arguments):
            if event == "socket.sendto":
                heard.append((type(arguments[0]).__name__, arguments[1][1]))
                if arguments[1][1] == 4:
                    raise RuntimeError("forbidden")
        sys.addaudithook(hook)
        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _loop, context: print(context["message"], repr(context["exception"])))
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
            for address in [("127.0.0.1", 9), ("127.0.0.1", 9), ("localhost", 8), ("127.0.0.1", 4)]:
                transport.sendto(b"x", address)
            print(transport.is_closing())
            await asyncio.sleep(0)
        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
        print(heard)
    """
    found = run_child(source, arm)
    assert found.stdout.splitlines() == [
        "Fatal write error on datagram transport RuntimeError('forbidden')",
        "True",
        "[('socket', 9), ('socket', 9), ('socket', 8), ('socket', 4)]",
    ], found.stderr
