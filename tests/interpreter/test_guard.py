"""The behaviour of ringloop on a later asyncio that has changed: it leaves that part to asyncio, or refuses to be imported.

Each body runs in a child process that changes methods of asyncio before ringloop is imported, as a later Python would.
"""

import json

import pytest

import support

# The code that each child begins with.
FUTURE = """
    import collections, inspect, json, socket, warnings
    from asyncio import base_events, selector_events, sslproto, streams, transports, unix_events

    def grow(owner, name, parameter="priority"):
        "Gives a method one more parameter, as a later asyncio might."
        original = getattr(owner, name)
        kinds = inspect.Parameter
        signature = inspect.signature(original)
        head, call = [], []
        for it in signature.parameters.values():
            default = "" if it.default is kinds.empty else f"=defaults[{it.name!r}]"
            if it.kind is kinds.VAR_KEYWORD:
                continue
            if it.kind is kinds.KEYWORD_ONLY and not any(text.startswith("*") for text in head):
                head.append("*")
            star = "*" if it.kind is kinds.VAR_POSITIONAL else ""
            head.append(star + it.name + default)
            call.append(f"{it.name}={it.name}" if it.kind is kinds.KEYWORD_ONLY else star + it.name)
        if not any(text.startswith("*") for text in head):
            head.append("*")
        head.append(f"{parameter}=None")
        if any(it.kind is kinds.VAR_KEYWORD for it in signature.parameters.values()):
            head.append("**rest")
            call.append("**rest")
        names = {"original": original, "defaults": {it.name: it.default for it in signature.parameters.values()}}
        exec(f"def {name}({', '.join(head)}): return original({', '.join(call)})", names)
        names[name].__qualname__ = original.__qualname__
        setattr(owner, name, names[name])

    def pretend(*version):
        fields = collections.namedtuple("version_info", "major minor micro releaselevel serial")
        sys.version_info = fields(*version, "final", 0)
"""

# A program that uses everything that can be left to asyncio, and prints which transports it met.
USE = """
    import ssl
    import trustme

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import ringloop

    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("server.test", key_type=trustme.KeyType.ECDSA).configure_cert(server_tls)
    client_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client_tls)
    met = {}

    def meet(what, thing):
        met.setdefault(what, set()).add(type(thing).__module__.partition(".")[0])

    async def echo(reader, writer):
        over_tls = writer.get_extra_info("sslcontext") is not None
        meet("tls" if over_tls else "stream", writer.transport)
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
            if line == b"upgrade\\n":
                await writer.start_tls(server_tls)
                meet("start_tls", writer.transport)
        writer.close()

    async def exchange(reader, writer, line):
        writer.write(line)
        assert await reader.readline() == line

    async def main():
        loop = asyncio.get_running_loop()
        for context in (None, server_tls):
            server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
            host, port = server.sockets[0].getsockname()
            options = {"ssl": client_tls, "server_hostname": "server.test"} if context else {}
            reader, writer = await asyncio.open_connection(host, port, **options)
            meet("tls" if context else "stream", writer.transport)
            await exchange(reader, writer, b"hello\\n")
            if not context:
                await exchange(reader, writer, b"upgrade\\n")
                await writer.start_tls(client_tls, server_hostname="server.test")
                meet("start_tls", writer.transport)
                await exchange(reader, writer, b"hello again\\n")
            writer.close()
            await writer.wait_closed()
            server.close()

        class Datagrams(asyncio.DatagramProtocol):
            def __init__(self):
                self.received = loop.create_future()

            def connection_made(self, transport):
                self.transport = transport

            def datagram_received(self, data, address):
                self.received.set_result(data)

        transport, protocol = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
        meet("datagrams", transport)
        transport.sendto(b"datagram", transport.get_extra_info("sockname"))
        assert await protocol.received == b"datagram"
        transport.close()

        child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        assert (await child.communicate(b"to a child"))[0] == b"to a child"
        assert child.returncode == 0
        meet("child", child._transport)

        assert await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)

    async def within(seconds):
        await asyncio.wait_for(main(), seconds)

    loop = new_loop()
    loop.run_until_complete(within(support.PATIENCE_S))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    print(json.dumps({
        "warnings": [[it.category.__name__, str(it.message), it.filename] for it in caught],
        "met": {what: sorted(modules) for what, modules in met.items()},
    }))
"""

ALL = {"stream", "tls", "start_tls", "datagrams"}


def use(change, *, then=USE, arm="epoll"):
    child = support.run_child(FUTURE + change + then, arm)
    assert child.returncode == 0, child.stderr
    assert child.stderr == ""
    return json.loads(child.stdout)


def by_asyncio(result):
    """Return what the program met of asyncio's own. Nothing may be of both."""
    assert all(len(modules) == 1 for modules in result["met"].values()), result
    return {what for what, modules in result["met"].items() if modules == ["asyncio"] and what in ALL}


def test_nothing_is_left_to_the_asyncio_that_ringloop_was_made_for():
    result = use("")
    assert result["warnings"] == []
    assert by_asyncio(result) == set()


@pytest.mark.parametrize(
    ("owner", "name", "left", "met"),
    [
        ("selector_events.BaseSelectorEventLoop", "_make_socket_transport", "stream connections", {"stream", "tls", "start_tls"}),
        ("selector_events.BaseSelectorEventLoop", "_sendfile_native", "stream connections", {"stream", "tls", "start_tls"}),
        ("selector_events._SelectorTransport", "is_closing", "stream connections and datagram endpoints", ALL),
        ("selector_events._SelectorSocketTransport", "write", "stream connections", {"stream", "tls", "start_tls"}),
        ("selector_events.BaseSelectorEventLoop", "_make_ssl_transport", "TLS connections", {"tls", "start_tls"}),
        ("sslproto.SSLProtocol", "buffer_updated", "TLS connections", {"tls", "start_tls"}),
        ("sslproto._SSLProtocolTransport", "write", "TLS connections", {"tls", "start_tls"}),
        ("selector_events.BaseSelectorEventLoop", "_make_datagram_transport", "datagram endpoints", {"datagrams"}),
        ("selector_events._SelectorDatagramTransport", "sendto", "datagram endpoints", {"datagrams"}),
        ("unix_events._UnixSelectorEventLoop", "_make_subprocess_transport", "subprocesses", set()),
        ("base_events.BaseEventLoop", "getaddrinfo", "name resolution", set()),
    ],
)  # fmt: skip
def test_a_changed_hook_is_left_to_asyncio(owner, name, left, met):
    result = use(f"    grow({owner}, {name!r})\n")
    ((category, text, filename),) = result["warnings"]
    assert category == "RuntimeWarning"
    assert filename == "<string>", "the warning is about the import"
    assert f"{name}() takes 'priority'" in text
    assert f"leaves {left} to asyncio" in text
    assert by_asyncio(result) == met


@pytest.mark.ringloop_only
def test_two_changes_are_one_warning(arm):
    change = """
    grow(selector_events.BaseSelectorEventLoop, "_make_datagram_transport")
    grow(selector_events.BaseSelectorEventLoop, "_make_socket_transport", "origin")
"""
    result = use(change, arm=arm)
    ((_, text, _),) = result["warnings"]
    assert "_make_datagram_transport() takes 'priority'" in text
    assert "_make_socket_transport() takes 'origin'" in text
    assert by_asyncio(result) == ALL


def test_a_method_more_in_the_interface_is_left_to_asyncio():
    result = use("    transports.WriteTransport.get_priority = lambda self: 0\n")
    ((_, text, _),) = result["warnings"]
    assert "WriteTransport has get_priority()" in text
    assert by_asyncio(result) == {"stream", "tls", "start_tls"}


def test_an_argument_that_ringloop_does_not_know_reaches_asyncio():
    """These methods hand on what they are given, so nothing needs to be left to asyncio."""
    change = """
    grow(base_events.BaseEventLoop, "connect_accepted_socket")
    grow(base_events.BaseEventLoop, "create_connection")
    grow(base_events.BaseEventLoop, "create_datagram_endpoint")
    grow(base_events.BaseEventLoop, "create_task")
    grow(unix_events._UnixSelectorEventLoop, "create_unix_connection")
"""
    then = """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import ringloop

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        async def connect():
            return await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname(), priority=1)
        transport, _ = await loop.create_task(connect(), priority=1)
        transport.close()
        server.close()
        one, other = socket.socketpair()
        for connect in (
            loop.connect_accepted_socket(asyncio.Protocol, one, priority=1),
            loop.create_unix_connection(asyncio.Protocol, sock=other, priority=1),
            loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0), priority=1),
        ):
            transport, _ = await connect
            transport.close()
    loop = new_loop()
    loop.run_until_complete(main())
    loop.close()
    print(json.dumps([str(it.message) for it in caught]))
"""
    assert use(change, then=then) == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("base_events.BaseEventLoop", "call_soon"),
        ("base_events.BaseEventLoop", "run_forever"),
        ("selector_events.BaseSelectorEventLoop", "_add_reader"),
        ("selector_events.BaseSelectorEventLoop", "sock_recv"),
    ],
)
def test_a_change_in_the_core_is_an_import_error(owner, name):
    child = support.run_child(
        FUTURE
        + f"""
    grow({owner}, {name!r})
    pretend(3, 16, 1)
    try:
        import ringloop
    except ImportError as error:
        print(error)
""",
        "epoll",
    )
    import ringloop

    # Some have another one of asyncio's in front of them.
    assert child.stdout.startswith(f"ringloop {ringloop.__version__} does not know the asyncio of Python 3.16.1: ")
    assert f"EventLoop.{name}() takes 'priority'. Install a newer ringloop. " in child.stdout
    assert len(child.stdout.splitlines()) == 1
    assert child.stderr == ""


def test_a_name_that_is_gone_is_an_import_error():
    child = support.run_child(
        FUTURE
        + """
    del base_events.Server._attach
    try:
        import ringloop
    except ImportError as error:
        print(error)
""",
        "epoll",
    )
    assert "does not know the asyncio of Python" in child.stdout, child.stderr
    assert "'_attach'" in child.stdout


# The copies of what asyncio does


COUNT = """
    calls = collections.Counter()

    codes = {
        streams.StreamReaderProtocol.data_received.__code__,
        base_events.BaseEventLoop._create_connection_transport.__code__,
    }

    def profile(frame, event, argument):
        if event == "call" and frame.f_code in codes:
            calls[frame.f_code.co_name] += 1

    # A method that was replaced would be called instead of its copy.
    sys.setprofile(profile)
    import ringloop

    async def main():
        async def handle(reader, writer):
            writer.write(await reader.read(10))
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert type(writer.transport).__module__ == "ringloop._transports"
        writer.write(b"x")
        assert await reader.read() == b"x"
        writer.close()
        await writer.wait_closed()
        server.close()

    loop = new_loop()
    loop.run_until_complete(main())
    loop.close()
    print(json.dumps(sorted(calls)))
"""


@pytest.mark.without_debug_mode
def test_the_copies_are_in_use_on_the_versions_that_were_tested():
    assert use("    os.environ.pop('PYTHONASYNCIODEBUG', None)\n", then=COUNT) == []


def test_the_copies_are_not_in_use_on_a_later_version():
    assert use("    pretend(3, 16, 0)\n", then=COUNT) == ["_create_connection_transport", "data_received"]
