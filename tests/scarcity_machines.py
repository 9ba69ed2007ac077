"""A loop without descriptors, as a state machine: what needs one fails with an OSError, and works again when there are some.

It is not compared with asyncio. See state_machines.py.
"""

import asyncio
import contextlib
import errno
import gc
import os
import pathlib
import socket
import tempfile

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

import support
from ringloop import files
from state_machines import TEXT

RETRY_S = 0.001
"""How long a server waits after a connection that it could not accept, instead of asyncio's second."""
SHORT_S = 0.05
"""How long an attempt lasts while there are too few descriptors: a server may find none for the connection that it is to accept."""


def is_scarcity(error):
    """Return whether an exception may come of too few descriptors."""
    if isinstance(error, (TimeoutError, socket.gaierror)):
        return True
    return isinstance(error, OSError) and (
        error.errno == errno.EMFILE or (error.errno is None and "Too many open files" in str(error))
    )


class ScarcityMachine(RuleBasedStateMachine):
    """A loop with a server, files and children."""

    def __init__(self, arm):
        super().__init__()
        self.arm = arm
        self.make_loop = support.loop_factory(arm)
        self.loop = self.make_loop()
        self.loop.set_exception_handler(self.handle_exception)
        self.reported = []
        self.retry_delay = asyncio.constants.ACCEPT_RETRY_DELAY
        asyncio.constants.ACCEPT_RETRY_DELAY = RETRY_S
        self.folder = tempfile.TemporaryDirectory(prefix="scarcity")
        self.path = pathlib.Path(self.folder.name, "file")
        self.path.write_bytes(TEXT[:10_000])
        self.server = self.loop.run_until_complete(asyncio.start_server(self.serve, support.HOST, 0))
        self.address = self.server.sockets[0].getsockname()
        # What is made once: the threads of the executor, and what they need.
        self.loop.run_until_complete(self.all_of_it())
        self.before = self.descriptors()

    def handle_exception(self, _loop, context):
        self.reported.append(context.get("exception"))

    def descriptors(self):
        return len(os.listdir("/proc/self/fd"))

    async def serve(self, reader, writer):
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    # What needs descriptors. Each ends what it has begun, also if it fails.

    async def connect(self):
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(b"data")
            assert await reader.readexactly(4) == b"data"
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def listen(self):
        server = await asyncio.start_unix_server(self.serve, os.path.join(self.folder.name, "socket"))
        server.close()

    async def accept(self):
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server((support.HOST, 0)))
            listener.setblocking(False)
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            await self.loop.sock_connect(client, listener.getsockname())
            accepted, _ = await self.loop.sock_accept(listener)
            with accepted:
                await self.loop.sock_sendall(client, b"data")
                assert await self.loop.sock_recv(accepted, 9) == b"data"

    async def datagrams(self):
        transport, _ = await self.loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=(support.HOST, 0))
        transport.close()

    async def file(self):
        async with files.open(self.path, "rb") as file:
            assert len(await file.read()) == 10_000

    async def new_file(self):
        async with files.open(self.path.with_name("new"), "w") as file:
            await file.write("text")

    async def child(self):
        process = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert await process.communicate(b"data") == (b"data", None)
        assert process.returncode == 0

    async def call(self):
        await self.loop.run_in_executor(None, os.getpid)

    async def resolve(self):
        await self.loop.getaddrinfo(support.HOST, 80)

    async def another_loop(self):
        def run():
            loop = self.make_loop()
            try:
                loop.run_until_complete(asyncio.sleep(0))
            finally:
                loop.close()

        # In a thread, for there is a loop in this one.
        await self.loop.run_in_executor(None, run)

    WHATS = ("connect", "listen", "accept", "datagrams", "file", "new_file", "child", "call", "resolve", "another_loop")

    async def all_of_it(self):
        for what in self.WHATS:
            await asyncio.wait_for(getattr(self, what)(), support.PATIENCE_S)

    async def attempt(self, what):
        try:
            await asyncio.wait_for(getattr(self, what)(), SHORT_S)
        except Exception as error:
            assert is_scarcity(error), (what, repr(error))

    @rule(
        left=st.integers(0, 9),
        whats=st.lists(st.sampled_from(WHATS), min_size=1, max_size=4),
        at_once=st.booleans(),
    )
    def lack(self, left, whats, at_once):
        """Attempt some of it with too few descriptors, one after the other or all at once."""
        with support.descriptors_left(left):
            self.loop.run_until_complete(self.attempts(whats, at_once))
        for error in self.reported:
            assert error is None or is_scarcity(error), repr(error)
        self.reported.clear()

    async def attempts(self, whats, at_once):
        if at_once:
            await asyncio.gather(*map(self.attempt, whats))
        else:
            for what in whats:
                await self.attempt(what)

    @rule()
    def recover(self):
        """Check that all of it works, and that nothing is left of what has failed."""
        self.loop.run_until_complete(self.all_of_it())
        assert not self.reported, self.reported
        self.loop.run_until_complete(support.until(self.has_none_left, "no descriptor is left over"))

    def has_none_left(self):
        if self.descriptors() > self.before:
            gc.collect()
        return self.descriptors() <= self.before

    def teardown(self):
        try:
            self.recover()
        finally:
            asyncio.constants.ACCEPT_RETRY_DELAY = self.retry_delay
            self.server.close()
            support.finish(self.loop)
            self.folder.cleanup()
