"""Parts of the standard library that a program has replaced before it imports ringloop: they counted as the originals."""

import pytest

from support import run_child

PREAMBLE = """
    import os, socket, tempfile, threading
    from asyncio import base_events, streams

    called = []

    def replace(owner, name):
        original = getattr(owner, name)

        def replacement(*arguments, **options):
            called.append((name, threading.current_thread() is threading.main_thread()))
            return original(*arguments, **options)

        setattr(owner, name, replacement)

    def run(main):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        print(*sorted(set(called)))
"""

CONNECT = """
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        called.clear()
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        transport.abort()
        server.close()
        await asyncio.sleep(0.01)
"""

CASES = {
    "a private method of the loop": (
        "replace(base_events.BaseEventLoop, '_connect_sock')",
        CONNECT,
        "('_connect_sock', True)",
    ),
    "connection_made": (
        "replace(streams.StreamReaderProtocol, 'connection_made')",
        """
    async def main():
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        with socket.socket() as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, server.sockets[0].getsockname())
            await asyncio.get_running_loop().sock_recv(client, 1)
        server.close()
""",
        "('connection_made', True)",
    ),
    "os.sendfile": (
        "replace(os, 'sendfile')",
        """
    async def main():
        ours, peer = socket.socketpair()
        with ours, peer, tempfile.TemporaryFile() as file:
            file.write(b"content")
            file.seek(0)
            ours.setblocking(False)
            await asyncio.get_running_loop().sock_sendfile(ours, file)
""",
        "('sendfile', True)",
    ),
    "getaddrinfo": (
        "replace(socket, 'getaddrinfo')",
        """
    async def main():
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
""",
        "('getaddrinfo', False)",
    ),
    "getnameinfo": (
        "replace(socket, 'getnameinfo')",
        """
    async def main():
        flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        await asyncio.get_running_loop().getnameinfo(("127.0.0.1", 80), flags)
""",
        "('getnameinfo', False)",
    ),
}


@pytest.mark.many_cases(short=3)
@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("when", ["before the import", "after it"])
def test_replacements_from_before_the_import(arm, what, when):
    replacement, main, expected = CASES[what]
    early = "" if when == "before the import" else "import ringloop"
    child = run_child(f"{PREAMBLE}\n    {early}\n    {replacement}\n{main}\n    run(main)\n", arm)
    assert (child.stdout, child.stderr) == (f"{expected}\n", "")
