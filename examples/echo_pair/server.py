"""An echo server with a thread for each connection: the standard library alone, no event loop.

    python examples/echo_pair/server.py [--host HOST] [--port 5050]

Sends back every byte it receives, until the client ends its side of the connection. Ctrl-C ends the server.
"""

import argparse
import signal
import socket
import sys
import threading
import time

BUFFER_BYTES = 64 * 1024
BACKLOG = 1024


def main() -> int:
    """Serve until Ctrl-C; return the exit status."""
    parser = argparse.ArgumentParser(description="echo server with a thread for each connection")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port_number, default=5050, help="port to listen on, 0 for any (default: %(default)s)"
    )
    arguments = parser.parse_args()
    try:
        listener = listen(arguments.host, arguments.port)
    except (OSError, UnicodeError) as error:
        print(f"error: cannot listen on {arguments.host} port {arguments.port}: {error}", file=sys.stderr)
        return 1
    with listener:
        ending = threading.Event()

        def end(signal_number: int, frame: object) -> None:
            # Ends accept(). KeyboardInterrupt would do so too, but it may also come in the middle of starting a thread.
            ending.set()
            listener.shutdown(socket.SHUT_RDWR)

        signal.signal(signal.SIGINT, end)
        host, port = listener.getsockname()[:2]
        print(f"threaded echo server listens on {host} port {port}; Ctrl-C ends it", flush=True)
        serve(listener, ending)
        print("ended")
    return 0


def port_number(text: str) -> int:
    """Return the port that an argument names."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address of either family; `host` may be a name."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address, family=family, backlog=BACKLOG)


def serve(listener: socket.socket, ending: threading.Event) -> None:
    """Give each connection a thread, until it is time to end."""
    while not ending.is_set():
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if ending.is_set():
                return
            # Out of descriptors (EMFILE), or a client gone before it was accepted: neither is a reason to stop serving.
            print(f"error: cannot accept a connection: {error}", file=sys.stderr)
            time.sleep(0.1)
            continue
        # The threads are daemons so that Ctrl-C does not wait for clients.
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    """Send back what arrives until the client ends its side."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with connection:
        # An echo that waits for more to send (Nagle's algorithm) waits for a client that waits for the echo.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while count := connection.recv_into(buffer):
                connection.sendall(buffer[:count])
        except ConnectionError:
            pass  # The client went away: there is nobody left to tell.


if __name__ == "__main__":
    sys.exit(main())
