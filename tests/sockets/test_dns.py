"""Name resolution: literals without a thread, names with one."""

import asyncio
import concurrent.futures
import socket
import threading

import pytest

from support import HOST, PATIENCE_S, has_ipv6, run_child, same_as_asyncio, until


def resolver_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")]


def stream_info(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = (host, port, 0, 0) if family == socket.AF_INET6 else (host, port)
    return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]


@pytest.mark.parametrize("host", ["127.0.0.1", "8.8.8.8", "::1", "2001:db8::5", "::ffff:1.2.3.4", "0.0.0.0", "::"])
def test_a_literal_resolves_to_itself(loop, host):
    answer = loop.run_until_complete(loop.getaddrinfo(host, 80, type=socket.SOCK_STREAM))
    assert answer == stream_info(host, 80) == socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
    assert type(answer) is list and type(answer[0]) is tuple


@pytest.mark.parametrize(
    "host, port, options",
    [
        ("127.0.0.1", 80, {}),
        ("::1", 80, {}),
        ("127.0.0.1", "80", {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", b"80", {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", None, {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", "http", {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", "", {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", 53, {"type": socket.SOCK_DGRAM}),
        ("127.0.0.1", 53, {"type": socket.SOCK_RAW}),
        ("127.0.0.1", 80, {"proto": socket.IPPROTO_TCP}),
        ("127.0.0.1", 80, {"proto": socket.IPPROTO_UDP}),
        ("127.0.0.1", 80, {"family": socket.AF_INET, "type": socket.SOCK_STREAM}),
        ("127.0.0.1", 80, {"family": socket.AF_INET6, "type": socket.SOCK_STREAM}),
        ("::1", 80, {"family": socket.AF_INET, "type": socket.SOCK_STREAM}),
        ("::1", 80, {"family": socket.AF_INET6, "type": socket.SOCK_STREAM}),
        ("::1%lo", 80, {"type": socket.SOCK_STREAM}),
        (b"127.0.0.1", 80, {"type": socket.SOCK_STREAM}),
        (None, 80, {"type": socket.SOCK_STREAM}),
        (None, 80, {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}),
        ("", 80, {"type": socket.SOCK_STREAM}),
        ("127.1", 80, {"type": socket.SOCK_STREAM}),
        ("0x7f.1", 80, {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", 80, {"type": socket.SOCK_STREAM, "flags": socket.AI_CANONNAME}),
        ("127.0.0.1", 80, {"type": socket.SOCK_STREAM, "flags": socket.AI_NUMERICHOST}),
        ("127.0.0.1", 80, {"type": socket.SOCK_STREAM, "flags": socket.AI_V4MAPPED, "family": socket.AF_INET6}),
        ("localhost", 80, {"type": socket.SOCK_STREAM}),
        ("2001:DB8:0:0::5", 80, {"type": socket.SOCK_STREAM}),
        ("fe80::1", 80, {"type": socket.SOCK_DGRAM, "proto": socket.IPPROTO_UDP}),
        ("1:2:3", 80, {"type": socket.SOCK_STREAM, "flags": socket.AI_NUMERICHOST}),
        ("127.0.0.1", 80, {"type": 1, "family": 2, "proto": 6}),
        ("127.0.0.1", 80, {"type": 1, "proto": socket.IPPROTO_UDP}),
        ("127.0.0.1", 80, {"type": socket.SOCK_STREAM | socket.SOCK_NONBLOCK}),
        ("127.0.0.1", 80, {"type": 1.0}),
        ("127.0.0.1", 80, {"type": []}),
        ("127.0.0.1", 80, {"type": 1, "family": 2.0}),
        ("127.0.0.1", 80, {"type": 1, "proto": "6"}),
        ("127.0.0.1", 80, {"type": 1, "flags": 0.0}),
        ("127.0.0.1", True, {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", 65535, {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", 65536, {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", 70000, {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", -1, {"type": socket.SOCK_STREAM}),
        ("127.0.0.1", "no such service", {"type": socket.SOCK_STREAM}),
        ("127.0.0.1\0", 80, {"type": socket.SOCK_STREAM}),
        (5, 80, {}),
        ("127.0.0.1", 1.5, {}),
    ],
    ids=repr,
)
def test_every_question_gets_the_answer_of_the_socket_module(loop, host, port, options):
    def ask(function):
        try:
            return function()
        except (OSError, TypeError, ValueError, OverflowError) as error:
            return type(error), str(error)

    expected = ask(lambda: socket.getaddrinfo(host, port, **options))
    assert ask(lambda: loop.run_until_complete(loop.getaddrinfo(host, port, **options))) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_for_literals_have_the_types_of_the_socket_module(loop, host):
    def types(answer):
        return [type(part) for part in (*answer[0], *answer[0][4])]

    answer = loop.run_until_complete(loop.getaddrinfo(host, 80, type=1))
    assert types(answer) == types(socket.getaddrinfo(host, 80, type=1))


def test_a_function_in_the_place_of_getaddrinfo_is_asked_for_literals_too(loop, monkeypatch):
    asked = []

    def getaddrinfo(host, port, family=0, type=0, proto=0, flags=0):
        asked.append((host, port, family, type, proto, flags))
        return ["an answer"]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert loop.run_until_complete(loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)) == ["an answer"]
    assert asked == [("127.0.0.1", 80, 0, socket.SOCK_STREAM, 0, 0)]


def test_asking_for_a_literal_is_an_audit_event(arm):
    child = run_child(
        """
        import socket

        asked = []
        sys.addaudithook(lambda name, arguments: asked.append(arguments) if name == "socket.getaddrinfo" else None)
        loop = new_loop()
        loop.run_until_complete(loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM))
        loop.close()
        print(asked == [("127.0.0.1", 80, 0, socket.SOCK_STREAM, 0)] or asked)
        """,
        arm,
    )
    assert (child.stdout, child.stderr) == ("True\n", "")


def test_names_of_the_arguments(loop):
    async def main():
        with pytest.raises(TypeError):
            await loop.getaddrinfo(HOST, 80, 0)
        return await loop.getaddrinfo(host=HOST, port=80, family=0, type=socket.SOCK_STREAM, proto=0, flags=0)

    assert loop.run_until_complete(main()) == stream_info(HOST, 80)


@pytest.mark.without_debug_mode
@pytest.mark.ringloop_only
def test_literals_need_no_thread(loop):
    before = resolver_threads()

    async def main():
        for host in ("127.0.0.1", "::1"):
            await loop.getaddrinfo(host, 80, type=socket.SOCK_STREAM)
            await loop.getaddrinfo(host, 80)
        await loop.getnameinfo((HOST, 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
        return resolver_threads()

    assert loop.run_until_complete(main()) == before


def test_connecting_to_and_listening_on_literals_needs_no_thread(loop):
    before = set(resolver_threads())

    async def main():
        server = await loop.create_server(asyncio.Protocol, HOST, 0)
        transport, _ = await loop.create_connection(
            asyncio.Protocol, *server.sockets[0].getsockname(), local_addr=(HOST, 0)
        )
        transport.close()
        server.close()
        await server.wait_closed()
        if has_ipv6():
            server = await loop.create_server(asyncio.Protocol, "::1", 0)
            transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname()[:2])
            transport.close()
            server.close()
            await server.wait_closed()
        return set(resolver_threads()) - before

    assert loop.run_until_complete(main()) == set()


def test_names_are_resolved_in_the_default_executor(loop, monkeypatch):
    asked = []
    original = socket.getaddrinfo

    def getaddrinfo(*arguments, **options):
        asked.append(threading.current_thread())
        return original(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    answer = loop.run_until_complete(loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM))
    assert (HOST, 80) in [info[4] for info in answer]
    assert asked and asked[0] is not threading.current_thread()
    assert asked[0].name.startswith("asyncio_")


def test_the_loop_turns_while_a_name_is_resolved(loop, monkeypatch):
    begun, release = threading.Event(), threading.Event()

    def getaddrinfo(*_arguments, **_options):
        begun.set()
        assert release.wait(PATIENCE_S)
        return stream_info(HOST, 80)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def main():
        task = loop.create_task(loop.getaddrinfo("name.invalid", 80))
        await until(begun.is_set)
        assert not task.done()
        release.set()
        return await task

    assert loop.run_until_complete(main()) == stream_info(HOST, 80)


def test_an_unknown_name(loop, monkeypatch):
    def getaddrinfo(*_arguments, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for call in (
        lambda: loop.getaddrinfo("name.invalid", 80),
        lambda: loop.create_connection(asyncio.Protocol, "name.invalid", 80),
        lambda: loop.create_server(asyncio.Protocol, "name.invalid", 80),
    ):
        with pytest.raises(socket.gaierror) as caught:
            loop.run_until_complete(call())
        assert caught.value.errno == socket.EAI_NONAME


@pytest.mark.parametrize(
    "address, flags",
    [
        ((HOST, 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        ((HOST, 80), socket.NI_NUMERICHOST),
        (("::1", 80, 0, 0), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        (("::1", 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        (("fe80::1", 80, 0, 1), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        ((HOST, 0), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        ((HOST, 65535), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV | socket.NI_DGRAM),
        ((HOST, 53), socket.NI_NUMERICHOST | socket.NI_DGRAM),
        (("localhost", 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        ((HOST, 70000), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        ((HOST, -1), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
        ((HOST,), socket.NI_NUMERICHOST),
        ((HOST, "80"), socket.NI_NUMERICHOST),
        ("text", 0),
        (None, 0),
        ((HOST, 80, 1), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV),
    ],
    ids=repr,
)
def test_getnameinfo_gives_the_answer_of_the_socket_module(loop, address, flags):
    def ask(function):
        try:
            return function()
        except (OSError, TypeError, ValueError, OverflowError) as error:
            return type(error), str(error)

    expected = ask(lambda: socket.getnameinfo(address, flags))
    assert ask(lambda: loop.run_until_complete(loop.getnameinfo(address, flags))) == expected


def test_getnameinfo_asks_in_the_executor_for_names(loop, monkeypatch):
    asked = []

    def getnameinfo(address, flags):
        asked.append(threading.current_thread())
        return "name", "service"

    monkeypatch.setattr(socket, "getnameinfo", getnameinfo)
    assert loop.run_until_complete(loop.getnameinfo((HOST, 80))) == ("name", "service")
    assert asked[0] is not threading.current_thread()


def test_a_cancelled_lookup(loop, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: release.wait(PATIENCE_S))

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.getaddrinfo("name.invalid", 80), 0.005)
        release.set()

    try:
        loop.run_until_complete(main())
    finally:
        release.set()


def test_an_executor_of_ones_own_is_used(loop_factory):
    def body(loop):
        class Counting(concurrent.futures.ThreadPoolExecutor):
            count = 0

            def submit(self, *arguments, **options):
                type(self).count += 1
                return super().submit(*arguments, **options)

        loop.set_default_executor(Counting(1))
        loop.run_until_complete(loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM))
        return Counting.count

    assert same_as_asyncio(body, loop_factory) == 1
