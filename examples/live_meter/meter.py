"""A live meter of an event loop under load: one line that is drawn anew, or one line per interval where it is no terminal.

    python examples/live_meter/meter.py [--seconds 10] [--interval 0.5] [--connections 20] [--slow-ms 0] [--backend auto]

The load is an echo server and its clients on the same loop. The meter runs in a thread of its own, so that it goes on when a
callback holds the loop up (try --slow-ms 200), and shows what `loop.metrics()` says about each interval. Ctrl-C ends it.
"""

import argparse
import asyncio
import sys
import threading
import time
from typing import TextIO

import ringloop

MESSAGE = b"x" * 1024
SLOW_EVERY_S = 1.0


def main() -> int:
    """Run load and meter; return the exit status."""
    parser = argparse.ArgumentParser(description="a live meter of an event loop under load")
    parser.add_argument("--seconds", type=positive, default=10.0, help="how long (default: %(default)s)")
    parser.add_argument("--interval", type=positive, default=0.5, help="seconds between lines (default: %(default)s)")
    parser.add_argument("--connections", type=count, default=20, help="clients of the load (default: %(default)s)")
    parser.add_argument("--slow-ms", type=count, default=0, help="block the loop for this time, once a second")
    parser.add_argument("--backend", choices=("auto", "io_uring", "epoll"), default="auto", help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        loop = ringloop.new_event_loop(backend=arguments.backend)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        meter = Meter(loop, arguments.interval, sys.stdout)
        try:
            runner.run(load(arguments.connections, arguments.seconds, arguments.slow_ms / 1000, meter))
        except KeyboardInterrupt:
            pass
        finally:
            meter.end()
    total = loop.metrics()
    print(
        f"{total.callbacks:,} callbacks in {total.turns:,} turns, {total.system_calls:,} system calls on {total.backend}"
    )
    return 0


def positive(text: str) -> float:
    """Return the number of seconds that an argument names."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def count(text: str) -> int:
    """Return the whole number that an argument names."""
    if not text.isdecimal() or int(text) > 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 100000")
    return int(text)


class Meter:
    """A thread that shows the metrics of each interval."""

    def __init__(self, loop: ringloop.EventLoop, interval_s: float, out: TextIO) -> None:
        self._loop, self._interval_s, self._out = loop, interval_s, out
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter")

    def start(self) -> None:
        """Begin to show."""
        self._thread.start()

    def end(self) -> None:
        """Show no more; the last line stays."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        terminal = self._out.isatty()
        before, before_s = self._loop.metrics(), time.monotonic()
        while not self._stop.wait(self._interval_s):
            now, now_s = self._loop.metrics(reset_slowest=True), time.monotonic()
            line = one_line(before, now, now_s - before_s)
            # On a terminal: to the line's beginning, the text, and nothing of a longer one before.
            print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", file=self._out, flush=True)
            before, before_s = now, now_s
        if terminal:
            print(file=self._out)


def one_line(before: ringloop.Metrics, now: ringloop.Metrics, elapsed_s: float) -> str:
    """Return what happened between two snapshots, as a line."""
    callbacks = now.callbacks - before.callbacks
    calls = now.system_calls - before.system_calls
    busy = (now.busy_seconds - before.busy_seconds) / elapsed_s
    parts = [
        now.backend,
        f"busy {busy:4.0%}",
        f"{callbacks / elapsed_s:9,.0f} callbacks/s",
        f"{calls / max(callbacks, 1):.2f} system calls each",
        f"{now.connections} connections",
        f"{now.ready} ready",
        f"{now.timers} timers",
    ]
    if now.slowest_callback is not None:
        parts.append(f"slowest {now.slowest_seconds * 1000:.1f} ms: {now.slowest_callback}")
    return " | ".join(parts)


class Echo(asyncio.Protocol):
    """Sends back what it receives: both ends of the load do."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Send it back."""
        self.transport.write(data)


async def load(connections: int, seconds: float, slow_s: float, meter: Meter) -> None:
    """Let messages go to and fro for some seconds, and block the loop now and then."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    clients = [(await loop.create_connection(Echo, host, port))[0] for _ in range(connections)]
    meter.start()
    try:
        for client in clients:
            client.write(MESSAGE)
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            if slow_s:
                loop.call_soon(block, slow_s)
            await asyncio.sleep(min(left, SLOW_EVERY_S))
    finally:
        for client in clients:
            client.close()
        server.close()
        await server.wait_closed()


def block(seconds: float) -> None:
    """Hold the loop up."""
    time.sleep(seconds)


if __name__ == "__main__":
    sys.exit(main())
