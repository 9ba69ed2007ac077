"""An echo server of which each byte costs a known amount of work, for the test that a known difference is measured as what it is.

It hashes WORK bytes for each KB that it sends back, which takes so long that all the rest hardly counts.
"""

import hashlib
import selectors
import socket
import sys

BUFFER = memoryview(bytes(4_000_000))


def main() -> None:
    host, port, work = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    listener = socket.create_server((host, port), backlog=1024)
    print(f"listening on {host}:{listener.getsockname()[1]}", flush=True)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                continue
            connection = key.fileobj
            data = connection.recv(65536)
            if data:
                hashlib.sha256(BUFFER[: work * len(data) // 1024]).digest()
                connection.sendall(data)
            else:
                selector.unregister(connection)
                connection.close()


main()
