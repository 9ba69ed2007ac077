"""The client of the two echo servers: one message and its round trip, or with --bench many and what they took.

    python examples/echo_pair/client.py --message hello
    python examples/echo_pair/client.py --port 5051 --bench --repeat 2000 --size 1024

Every echoed byte is compared with the one that was sent. Exits with 0 when all was echoed, with 1 when the server
failed, with 2 when the arguments are wrong, with 130 after Ctrl-C; what went wrong is one line on stderr. Needs the
standard library alone.
"""

import argparse
import contextlib
import io
import math
import os
import select
import socket
import sys
import time
from typing import NoReturn

WARM_UP_ROUNDS_MIN = 10
WARM_UP_ROUNDS_MAX = 1000
SURPLUS_WAIT_S = 0.2
"""How long the client waits, after its last message, for bytes that nobody sent."""


class EchoError(Exception):
    """The server did something that an echo server does not do; the text says what."""


def main() -> int:
    """Do what the command line asks for; return the exit status."""
    arguments = parse_arguments()
    # A message may hold anything that a command line can, whatever the locale can print.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with connect(arguments.host, arguments.port, arguments.timeout) as connection:
            if arguments.bench:
                bench(connection, filled(arguments.message, arguments.size), arguments.repeat)
            else:
                show(connection, filled(arguments.message, arguments.size))
    except EchoError as error:
        print(f"error: {arguments.host} port {arguments.port}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments on one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (--help explains the arguments)\n")


def parse_arguments() -> argparse.Namespace:
    """Return the checked arguments; where they are wrong, say so and exit."""
    parser = Parser(description="client of the echo servers", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1", help="where the server is (default: %(default)s)")
    parser.add_argument("--port", type=port_number, default=5050, help="its port (default: %(default)s)")
    parser.add_argument(
        "--message", type=os.fsencode, default=b"hello", metavar="TEXT", help="what to send (default: hello)"
    )
    parser.add_argument("--size", type=count, metavar="BYTES", help="repeat or cut TEXT to a message of this size")
    parser.add_argument("--bench", action="store_true", help="measure many round trips on one connection")
    parser.add_argument("--repeat", type=count, metavar="N", help="how many of them (default: 1000)")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=5.0,
        metavar="S",
        help="how long the server may be silent (default: %(default)g s)",
    )
    arguments = parser.parse_args()
    if not arguments.message:
        parser.error("argument --message: an empty message has no echo")
    if arguments.repeat is not None and not arguments.bench:
        parser.error("argument --repeat: needs --bench")
    arguments.repeat = arguments.repeat or 1000
    arguments.size = arguments.size or len(arguments.message)
    return arguments


def port_number(text: str) -> int:
    """Return the port that an argument names."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65535")
    return int(text)


def count(text: str) -> int:
    """Return the positive whole number that an argument gives."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def seconds(text: str) -> float:
    """Return the time that an argument gives."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above zero")


def filled(text: bytes, size: int) -> bytes:
    """Return a message of `size` bytes that repeats `text`."""
    return (text * -(-size // len(text)))[:size]


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connected socket whose every wait ends after `timeout_s`; raise EchoError where there is no server."""
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
    except (socket.gaierror, UnicodeError) as error:
        # UnicodeError is what a name with an empty or overlong label gives.
        raise EchoError(f"cannot find the host: {error}") from error
    except ConnectionRefusedError as error:
        raise EchoError("connection refused; start a server with: python examples/echo_pair/server.py") from error
    except TimeoutError as error:
        raise EchoError(f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise EchoError(f"cannot connect: {error.strerror or error}") from error
    # Nagle's algorithm would hold back the end of a message until the server acknowledges its beginning.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def show(connection: socket.socket, message: bytes) -> None:
    """Print the echo of one message and its round trip."""
    echo = bytearray(len(message))
    took_ns = round_trip(connection, message, echo)
    check_surplus(connection)
    print(f"echo        {echo.decode(errors='backslashreplace')}")
    print(f"round trip  {took_ns / 1e6:.3f} ms")


def bench(connection: socket.socket, message: bytes, repeat: int) -> None:
    """Print average and 95th percentile of `repeat` round trips, one after the other, after a warm-up."""
    echo = bytearray(len(message))
    warm_up = min(max(repeat // 10, WARM_UP_ROUNDS_MIN), WARM_UP_ROUNDS_MAX)
    times_ns = []
    with Progress(warm_up + repeat) as progress:
        for _ in range(warm_up):
            round_trip(connection, message, echo)
            progress.advance()
        for _ in range(repeat):
            times_ns.append(round_trip(connection, message, echo))
            progress.advance()
    check_surplus(connection)
    times_ns.sort()
    average_ns = sum(times_ns) / repeat
    p95_ns = times_ns[math.ceil(0.95 * repeat) - 1]
    print(f"{repeat} round trips of {len(message)} bytes on one connection, after {warm_up} for warm-up")
    print(f"average     {average_ns / 1e6:.3f} ms")
    print(f"p95         {p95_ns / 1e6:.3f} ms")
    # Bytes per nanosecond are gigabytes per second; a message counts once, not once for each direction.
    print(f"throughput  {len(message) / average_ns * 1e3:.2f} MB/s")


def round_trip(connection: socket.socket, message: bytes, echo: bytearray) -> int:
    """Send a message, receive as many bytes into `echo`, and return the nanoseconds from the first to the last.

    Raise EchoError if other bytes come back, or not as many.
    """
    received = 0
    problem = ""
    started_ns = time.perf_counter_ns()
    try:
        sent = connection.send(message)
        while received < len(message):
            if sent < len(message):
                # The message is larger than what the sockets hold: a client that sends all of it before it reads
                # would wait for a server that waits for the client.
                readable, writable, _ = select.select([connection], [connection], [], connection.gettimeout())
                if not readable and not writable:
                    raise TimeoutError
                if writable:
                    sent += connection.send(memoryview(message)[sent:])
                if not readable:
                    continue
            fresh = connection.recv_into(memoryview(echo)[received:])
            if fresh == 0:
                raise ConnectionResetError
            received += fresh
    except TimeoutError:
        problem = f"the server was silent for {connection.gettimeout():g} s"
    except ConnectionError:
        problem = "the server hung up"
    took_ns = time.perf_counter_ns() - started_ns
    # What did come back is checked first: a wrong byte tells more about a server than its end.
    if echo[:received] != message[:received]:
        place = next(index for index in range(received) if echo[index] != message[index])
        raise EchoError(f"wrong echo: byte {place} is 0x{echo[place]:02x}, and 0x{message[place]:02x} was sent")
    if problem:
        raise EchoError(f"{problem} after {received} of {len(message)} bytes of the echo")
    return took_ns


def check_surplus(connection: socket.socket) -> None:
    """End this side of the connection; raise EchoError if the server still sends something."""
    surplus = b""
    # How the server ends its own side, or whether it does, is its own affair.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(SURPLUS_WAIT_S)
        surplus = connection.recv(65536)
    if surplus:
        raise EchoError(f"wrong echo: {len(surplus)} bytes more than were sent")


class Progress:
    """A bar on stderr for a run of more than a second, where stderr is a terminal.

    It is drawn between two round trips, in no thread of its own, so that it never runs inside of what is measured.
    """

    FIRST_S = 1.0
    INTERVAL_S = 0.1
    WIDTH = 40

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.started_s = time.monotonic()
        self.next_s = self.started_s + self.FIRST_S if sys.stderr.isatty() else math.inf
        self.drawn = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.drawn:
            # Back to the start of the line, and erase it.
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def advance(self) -> None:
        """Count one round trip, and draw if it is time to."""
        self.done += 1
        now_s = time.monotonic()
        if now_s < self.next_s:
            return
        self.next_s = now_s + self.INTERVAL_S
        self.drawn = True
        filled_columns = self.WIDTH * self.done // self.total
        bar = "#" * filled_columns + "." * (self.WIDTH - filled_columns)
        left_s = (now_s - self.started_s) / self.done * (self.total - self.done)
        print(f"\r[{bar}] {self.done} of {self.total}, {left_s:.0f} s left\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
