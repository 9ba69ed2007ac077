"""The event loop: what runs once per loop or per connection. What runs per callback or packet is native, in `_core`.

`EventLoop` derives from the selector loop of the running Python's asyncio and replaces what lies below it: the queue, the
timers, the selector, and the transports. Servers, connections, name resolution, signals and subprocesses, with all their
messages and errors, are the running Python's own.
"""

from __future__ import annotations

import _socket
import asyncio
import errno
import functools
import os
import signal
import socket
import sys
import threading
import weakref
from asyncio import base_events, constants, events, trsock
from asyncio.log import logger
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import _children, _core, _platform, _tls
from ._datagrams import DatagramTransport, can_be_native
from ._metrics import Metrics
from ._names import find_literal
from ._pipes import ReadPipeTransport, WritePipeTransport, adopt_child
from ._streams import for_server
from ._transports import SocketTransport, send_file, send_file_over_socket

if TYPE_CHECKING:
    import contextvars
    import ssl
    from collections.abc import Callable, Coroutine
    from socket import _GetAddrInfoResult

    from ._types import _Loop as _Native
else:
    _Native = _core.Loop

_T = TypeVar("_T")
_ProtocolT = TypeVar("_ProtocolT", bound=asyncio.BaseProtocol)


_NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


# From Python 3.15 on, all callbacks of a stream transport run in one context, which is copied before the protocol is made.
_ONE_CONTEXT_PER_CONNECTION = sys.version_info >= (3, 15)


# The errors of `accept` until something is given back.
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


# The sockets through which signals have been sent, of loops that still exist.
_WAKEUP_SOCKETS: weakref.WeakSet[socket.socket] = weakref.WeakSet()


# If the socket is full, the loop wakes anyway.
_set_wakeup_fd = functools.partial(signal.set_wakeup_fd, warn_on_full_buffer=False)


def _give_back_wakeup_fd(fd: int) -> bool:
    """Set again what `set_wakeup_fd` has returned. Return False if that is no longer possible, because the descriptor is closed.

    Nobody can ask whether warnings were wanted. Where they weren't, one for each signal would do more harm than none.
    """
    try:
        _set_wakeup_fd(fd)
    except (ValueError, OSError):
        return False
    return True


def _keep_signals_from_the_parent() -> None:
    """Stop sending signals, in a forked child, to the parent's loop, which would take them for its own."""
    if not _WAKEUP_SOCKETS:
        return
    current = signal.set_wakeup_fd(-1)
    if all(sock.fileno() != current for sock in _WAKEUP_SOCKETS):
        _give_back_wakeup_fd(current)


if sys.version_info < (3, 12):  # later asyncio does it
    os.register_at_fork(after_in_child=_keep_signals_from_the_parent)


class _SelectorView:
    """The part of `loop._selector` that asyncio's own code uses: which descriptors are watched, and for what."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = weakref.ref(loop)

    def get_key(self, fileobj: Any) -> SelectorKey:
        loop = self._loop()
        fd, handles = (-1, None) if loop is None else loop._watched(fileobj)
        if handles is None:
            raise KeyError(f"{fileobj!r} is not registered")
        mask = (EVENT_READ if handles[0] else 0) | (EVENT_WRITE if handles[1] else 0)
        return SelectorKey(fileobj, fd, mask, handles)

    def close(self) -> None:
        pass


class EventLoop(_Native, asyncio.SelectorEventLoop):
    """An asyncio event loop on io_uring or epoll.

    `backend` is "auto" (default), "io_uring" or "epoll"; `busy_poll` is "off", "adaptive" (default) or a number of
    microseconds to poll before sleeping. Both default to the environment: RINGLOOP_BACKEND, RINGLOOP_BUSY_POLL.
    Raises ValueError for an unknown value, OSError if a backend that was asked for by name is refused.
    """

    def __init__(self, *, backend: str | None = None, busy_poll: str | int | None = None) -> None:
        self._children: set[_children.Child] = set()
        # The descriptor that `signal.set_wakeup_fd` had before; empty while signals don't come to this loop.
        self._replaced_wakeup_fds: list[int] = []
        self._lent_sockets: weakref.WeakValueDictionary[int, socket.socket] = weakref.WeakValueDictionary()
        try:
            super().__init__(cast("Any", _SelectorView(self)))
        except BaseException:
            self._closed = True
            self._release()
            raise

    # Taken now, so that later patches of asyncio's classes, such as nest_asyncio's, don't reach these loops.
    run_until_complete = base_events.BaseEventLoop.run_until_complete
    if not TYPE_CHECKING:
        _check_running = base_events.BaseEventLoop._check_running

    @property
    def _nest_patched(self) -> bool:
        """Raises an error for nest_asyncio, which looks for this before it patches the class of a loop."""
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("nest_asyncio"):
            raise RuntimeError(
                "nest_asyncio cannot patch a ringloop.EventLoop, whose queue and turns are native; "
                "use asyncio's own event loop where loops are nested"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute '_nest_patched'")

    def run_forever(self) -> None:
        """Run until stop() is called."""
        self._check_closed()
        self._check_running()
        try:
            self._run_forever_setup()
            self._let_signals_wake()
            self._run()
        finally:
            # What keeps this loop and others from running again comes first, and without a call of a Python function: a signal
            # handler may raise when one begins.
            self._stopping = False
            self._thread_id = None
            events._set_running_loop(None)
            try:
                self._give_back_signals()
            finally:
                self._run_forever_cleanup()

    # asyncio has these from Python 3.13 on.
    if not hasattr(base_events.BaseEventLoop, "_run_forever_setup"):
        _old_agen_hooks: sys._asyncgen_hooks | None = None

        def _run_forever_setup(self) -> None:
            self._check_closed()
            self._check_running()
            self._set_coroutine_origin_tracking(self._debug)
            self._old_agen_hooks = sys.get_asyncgen_hooks()
            self._thread_id = threading.get_ident()
            sys.set_asyncgen_hooks(
                firstiter=self._asyncgen_firstiter_hook,
                finalizer=self._asyncgen_finalizer_hook,
            )
            events._set_running_loop(self)

        def _run_forever_cleanup(self) -> None:
            self._set_coroutine_origin_tracking(False)
            if self._old_agen_hooks is not None:
                sys.set_asyncgen_hooks(*self._old_agen_hooks)
                self._old_agen_hooks = None

    def _let_signals_wake(self) -> None:
        """Make a signal end a wait in the kernel even if it arrives just before the wait begins."""
        if threading.current_thread() is not threading.main_thread():
            return
        _WAKEUP_SOCKETS.add(self._csock)
        ours, replaced = self._csock.fileno(), self._replaced_wakeup_fds
        try:
            # A signal handler may raise after this call, but not within it: what was set before is then in the list.
            replaced.extend(map(_set_wakeup_fd, (ours,)))
        except ValueError:  # a subinterpreter's main thread isn't the process's
            return
        if replaced[-1] == ours:  # it was not given back: a handler has raised
            del replaced[1:]
        # The user's own stays. A loop's signal handlers replace it, as under asyncio.
        elif replaced[-1] != -1 and _give_back_wakeup_fd(replaced[-1]):
            replaced.clear()

    def _give_back_signals(self) -> None:
        """Undo `_let_signals_wake`, unless signal handlers of the loop need it."""
        replaced = self._replaced_wakeup_fds
        if threading.current_thread() is not threading.main_thread():
            return  # what a signal handler has left here, by raising, stays for a run in the main thread
        if replaced and not self._signal_handlers and not self._closed:
            current = signal.set_wakeup_fd(-1)
            if current != self._csock.fileno():
                _give_back_wakeup_fd(current)
            elif replaced[0] != -1:
                _give_back_wakeup_fd(replaced[0])
        replaced.clear()

    def close(self) -> None:
        """Close the loop: its queue, its timers, and the kernel's objects. It must not be running."""
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self.is_closed():
            return
        self._give_back_signals()
        super().close()
        self._release()
        for child in list(self._children):
            child.outlive()
        self._children.clear()

    def _close_self_pipe(self) -> None:
        this: Any = self
        # In a garbage cycle, the collector may have closed the sockets before it has the loop closed.
        if this._ssock.fileno() >= 0:
            cast("Any", super())._close_self_pipe()
            return
        this._csock.close()
        this._ssock = this._csock = None
        this._internal_fds -= 1

    def metrics(self, *, reset_slowest: bool = False) -> Metrics:
        """Return an immutable snapshot of what the loop has done so far and what it holds now; see `Metrics`.

        It may be called from any thread, while the loop runs or waits, and after it was closed. During a wait, system calls, events
        and wakes are counted up to the beginning of the wait; times are always up to now. With `reset_slowest`, the slowest
        callback is forgotten after it was read: the next snapshot has the slowest one since.
        """
        counts, seconds, slowest, kernel, stalls = self._metrics(reset_slowest=reset_slowest)
        return Metrics(self.backend, *counts, *seconds, *slowest, *kernel, *stalls)

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> _GetAddrInfoResult:
        """Resolve a name, in the default executor; an address literal is answered at once, without a thread."""
        if not self._debug:
            found = find_literal(host, port, family, type, proto, flags)
            if found is not None:
                return found
        return await super().getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """Find the name of an address, in the default executor; without a thread if numbers are asked for."""
        is_own = socket.getnameinfo is _socket.getnameinfo  # another one may block
        if is_own and isinstance(flags, int) and flags & _NUMERIC == _NUMERIC:
            return socket.getnameinfo(sockaddr, flags)
        return await super().getnameinfo(sockaddr, flags)

    def _make_socket_transport(
        self,
        sock: Any,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
        *,
        extra: dict[str, Any] | None = None,
        server: asyncio.Server | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Transport:
        if not _core._is_usual_socket(sock):
            # It may have methods of its own, which asyncio calls.
            options = {} if context is None else {"context": context}
            return cast("Any", super())._make_socket_transport(  # type: ignore[no-any-return]
                sock, protocol, waiter, extra=extra, server=server, **options
            )
        self._ensure_fd_no_transport(sock)
        # A server's connections are its own.
        lent = server is None and self._is_lent(sock)
        transport = SocketTransport(self, sock, protocol, extra, context, lent)
        if server is not None:
            transport._attach(server)
        transport._begin(waiter)
        return cast("asyncio.Transport", transport)

    def _make_ssl_transport(
        self,
        rawsock: socket.socket,
        protocol: asyncio.BaseProtocol,
        sslcontext: ssl.SSLContext | None,
        waiter: asyncio.Future[None] | None = None,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        extra: dict[str, Any] | None = None,
        server: asyncio.Server | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        context: contextvars.Context | None = None,
    ) -> _tls.SSLProtocolTransport:
        self._ensure_fd_no_transport(rawsock)
        ssl_protocol = _tls.SSLProtocol(
            self,
            protocol,
            sslcontext,
            waiter,
            server_side,
            server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        self._make_socket_transport(rawsock, ssl_protocol, extra=extra, server=server, context=context)
        return ssl_protocol._get_app_transport()

    start_tls = _tls.start_tls

    if _platform.IS_TESTED:

        def _accept_connection(
            self,
            protocol_factory: Callable[[], asyncio.BaseProtocol],
            sock: Any,
            sslcontext: ssl.SSLContext | None = None,
            server: asyncio.Server | None = None,
            backlog: int = 100,
            ssl_handshake_timeout: float | None = None,
            ssl_shutdown_timeout: float | None = None,
            context: contextvars.Context | None = None,
        ) -> None:
            """Accept what waits at a listening socket.

            asyncio makes a task for each connection, which costs more than everything else that is done for it. Here that is a callback,
            unless the task has anything to wait for, or somebody is interested in tasks.
            """
            count_max = max(backlog, 0) + 1
            if (
                not _ONE_CONTEXT_PER_CONNECTION
                and not sslcontext
                and _core._is_usual_socket(sock)
                and type(sock) is socket.socket  # of which class `accept` makes the new socket
                and not self._debug
                and self._task_factory is None
                and self._accept(protocol_factory, sock, server, count_max)
            ):
                return
            for _ in range(count_max):
                try:
                    connection, address = sock.accept()
                    if self._debug:
                        logger.debug("%r got a new connection from %r: %r", server, address, connection)
                    connection.setblocking(False)
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    return
                except OSError as error:
                    if error.errno not in _OUT_OF_RESOURCES:
                        raise
                    options = (context,) if _ONE_CONTEXT_PER_CONNECTION else ()
                    self._remove_reader(sock.fileno())
                    self.call_later(
                        constants.ACCEPT_RETRY_DELAY,
                        self._accept_again,
                        protocol_factory,
                        sock,
                        sslcontext,
                        server,
                        backlog,
                        ssl_handshake_timeout,
                        ssl_shutdown_timeout,
                        *options,
                    )
                    self.call_exception_handler(
                        {
                            "message": "socket.accept() out of system resource",
                            "exception": error,
                            "socket": trsock.TransportSocket(sock),
                        }
                    )
                    # asyncio goes on to the next place in the backlog, and reports and schedules the same for each.
                    return
                named = {} if context is None else {"context": context.copy()}
                accepted = cast("Any", self)._accept_connection2(
                    protocol_factory,
                    connection,
                    {"peername": address},
                    sslcontext,
                    server,
                    ssl_handshake_timeout,
                    ssl_shutdown_timeout,
                    **named,
                )
                self.create_task(accepted, **named)

        def _accept_again(self, protocol_factory: Callable[[], asyncio.BaseProtocol], sock: Any, *options: Any) -> None:
            """Go on after a pause, unless the server was closed meanwhile."""
            if sock.fileno() >= 0:
                cast("Any", self)._start_serving(protocol_factory, sock, *options)

    async def _make_subprocess_transport(
        self,
        protocol: asyncio.BaseProtocol,
        args: Any,
        shell: bool,
        stdin: Any,
        stdout: Any,
        stderr: Any,
        bufsize: int,
        extra: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> asyncio.SubprocessTransport:
        if _children.has_own_watcher():
            transport: asyncio.SubprocessTransport = await super()._make_subprocess_transport(  # type: ignore[misc]
                protocol, args, shell, stdin, stdout, stderr, bufsize, extra=extra, **kwargs
            )
        else:
            transport = await _children.start(
                self, protocol, args, shell, stdin, stdout, stderr, bufsize, extra=extra, options=kwargs
            )
        if _platform.IS_TESTED:
            adopt_child(protocol)
        return transport

    if _platform.IS_TESTED:

        def _make_read_pipe_transport(
            self,
            pipe: Any,
            protocol: asyncio.BaseProtocol,
            waiter: asyncio.Future[None] | None = None,
            extra: dict[str, Any] | None = None,
        ) -> asyncio.ReadTransport:
            return cast("Any", ReadPipeTransport)(self, pipe, protocol, waiter, extra)  # type: ignore[no-any-return]

        def _make_write_pipe_transport(
            self,
            pipe: Any,
            protocol: asyncio.BaseProtocol,
            waiter: asyncio.Future[None] | None = None,
            extra: dict[str, Any] | None = None,
        ) -> asyncio.WriteTransport:
            return cast("Any", WritePipeTransport)(self, pipe, protocol, waiter, extra)  # type: ignore[no-any-return]

    def _make_datagram_transport(
        self,
        sock: socket.socket,
        protocol: asyncio.BaseProtocol,
        address: Any = None,
        waiter: asyncio.Future[None] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> asyncio.DatagramTransport:
        self._ensure_fd_no_transport(sock)
        if not can_be_native(sock):
            return cast("Any", super())._make_datagram_transport(sock, protocol, address, waiter, extra)  # type: ignore[no-any-return]
        lent = self._is_lent(sock)
        return cast("Any", DatagramTransport)(self, sock, protocol, address, waiter, extra, lent)  # type: ignore[no-any-return]

    def _lend(self, sock: Any) -> None:
        """Note that a transport's socket belongs to the user, who may close it at any time; a ring would keep it open."""
        if _core._is_usual_socket(sock):  # asyncio's transports watch others
            self._lent_sockets[id(sock)] = sock

    def _is_lent(self, sock: socket.socket) -> bool:
        return self._lent_sockets.get(id(sock)) is sock

    async def _sendfile_native(self, transp: Any, file: Any, offset: int, count: int | None) -> int:
        if issubclass(type(transp), SocketTransport):
            return await send_file(self, transp, file, offset, count)
        return cast("int", await super()._sendfile_native(transp, file, offset, count))  # type: ignore[misc]

    async def _sock_sendfile_native(self, sock: socket.socket, file: Any, offset: int, count: int | None) -> int:
        sent = await send_file_over_socket(self, sock, file, offset, count)
        if sent is None:
            return cast("int", await super()._sock_sendfile_native(sock, file, offset, count))  # type: ignore[misc]
        return sent

    async def create_connection(
        self,
        protocol_factory: Callable[[], _ProtocolT],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, _ProtocolT]:
        """Connect a stream; see `asyncio.loop.create_connection`. Address literals without options have a native way."""
        if options or not _platform.IS_TESTED or (connecting := self._connect(protocol_factory, host, port)) is None:
            self._lend(options.get("sock"))
            return await super().create_connection(protocol_factory, cast(Any, host), cast(Any, port), **options)
        return await connecting

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *address: Any, **options: Any
    ) -> asyncio.Server:
        """Make a server on a socket, or on several; see `asyncio.loop.create_server`."""
        return await super().create_server(for_server(protocol_factory), *address, **options)

    async def create_unix_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *path: Any, **options: Any
    ) -> asyncio.Server:
        """Make a server on a Unix socket; see `asyncio.loop.create_unix_server`."""
        return await super().create_unix_server(for_server(protocol_factory), *path, **options)

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], _ProtocolT], sock: socket.socket, **options: Any
    ) -> tuple[asyncio.Transport, _ProtocolT]:
        """Make a transport for a connection that was accepted elsewhere; see `asyncio.loop.connect_accepted_socket`."""
        self._lend(sock)
        return await super().connect_accepted_socket(protocol_factory, sock, **options)

    async def create_unix_connection(
        self, protocol_factory: Callable[[], _ProtocolT], path: str | None = None, **options: Any
    ) -> tuple[asyncio.Transport, _ProtocolT]:
        """Connect a stream to a Unix socket; see `asyncio.loop.create_unix_connection`."""
        self._lend(options.get("sock"))
        return await super().create_unix_connection(protocol_factory, cast(Any, path), **options)

    async def create_datagram_endpoint(
        self, protocol_factory: Callable[[], _ProtocolT], *addresses: Any, **options: Any
    ) -> tuple[asyncio.DatagramTransport, _ProtocolT]:
        """Make a datagram endpoint; see `asyncio.loop.create_datagram_endpoint`."""
        self._lend(options.get("sock"))
        return await super().create_datagram_endpoint(cast(Any, protocol_factory), *addresses, **options)


# Where a loop has others, asyncio connects.
_core._note_connecting_methods(EventLoop)


def new_event_loop(*, backend: str | None = None, busy_poll: str | int | None = None) -> EventLoop:
    """Make an event loop; the factory for `asyncio.run(..., loop_factory=...)` and `asyncio.Runner`.

    The arguments are `EventLoop`'s.
    """
    return EventLoop(backend=backend, busy_poll=busy_poll)


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run a coroutine on a new ringloop event loop and return its result, as `asyncio.run` does."""
    if events._get_running_loop() is not None:
        # asyncio.Runner would raise this only after making a loop.
        raise RuntimeError("ringloop.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        return runner.run(main)
