"""An echo server on asyncio streams that runs on any event loop: asyncio's own, uvloop or ringloop.

    python examples/echo_pair/server_async.py [--host HOST] [--port 5051] [--loop asyncio|uvloop|ringloop]

Sends back every byte it receives, until the client ends its side of the connection. Ctrl-C ends the server.
"""

import argparse
import asyncio
import importlib
import sys
from collections.abc import Callable

BUFFER_BYTES = 64 * 1024
BACKLOG = 1024
INSTALL = {"uvloop": "pip install uvloop", "ringloop": "make build, then run this with .venv/bin/python"}


def main() -> int:
    """Serve until Ctrl-C; return the exit status."""
    parser = argparse.ArgumentParser(description="echo server on asyncio streams, on any event loop")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port_number, default=5051, help="port to listen on, 0 for any (default: %(default)s)"
    )
    parser.add_argument("--loop", choices=("asyncio", *INSTALL), default="asyncio", help="default: %(default)s")
    arguments = parser.parse_args()
    try:
        factory = loop_factory(arguments.loop)
    except ImportError as error:
        print(f"error: {error}; install it with: {INSTALL.get(arguments.loop)}", file=sys.stderr)
        return 1
    # The loop is all that differs: the program below is the same on each of them.
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(serve(arguments.host, arguments.port, arguments.loop))
        except KeyboardInterrupt:
            print("ended")
            return 0


def port_number(text: str) -> int:
    """Return the port that an argument names."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes an event loop of this kind; raise ImportError where it is not installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(name).new_event_loop
    return factory


async def serve(host: str, port: int, loop_name: str) -> int:
    """Serve until this task is cancelled, which is what Ctrl-C does to it; return 1 where it cannot listen."""
    try:
        server = await asyncio.start_server(echo, host, port, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        print(f"error: cannot listen on {host} port {port}: {error}", file=sys.stderr)
        return 1
    for listener in server.sockets:
        address, actual_port = listener.getsockname()[:2]
        print(f"{loop_name} echo server listens on {address} port {actual_port}; Ctrl-C ends it", flush=True)
    try:
        # Not serve_forever(): from Python 3.12 on, its end waits until every client has left.
        await asyncio.Event().wait()
    finally:
        server.close()
    return 0


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what arrives until the client ends its side."""
    try:
        while data := await reader.read(BUFFER_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # The client went away: there is nobody left to tell.
    except asyncio.CancelledError:
        pass  # Ctrl-C; Python 3.11 takes a handler that ends as cancelled for a failure and prints it.
    finally:
        writer.close()


if __name__ == "__main__":
    sys.exit(main())
