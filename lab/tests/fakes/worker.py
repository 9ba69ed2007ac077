"""A hidden worker of the fake server: it serves connections that are handed over to it, and works for each message.

Its word is the descriptor of the socket over which they come, or a path at which it waits for whoever hands them over.
"""

import os
import socket
import sys
import threading
import time

WORK_S = 0.001
"""Of CPU for each message, at least."""


def serve(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(65536):
            begun = time.thread_time()
            while time.thread_time() - begun < WORK_S:
                pass
            connection.sendall(data)


def main(where: str) -> None:
    if where.isdigit():
        line = socket.socket(fileno=int(where))
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(where)
            listener.listen()
            print("waiting", flush=True)
            line, _ = listener.accept()
    with line:
        while True:
            _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
            if not descriptors:
                os._exit(0)
            connection = socket.socket(fileno=descriptors[0])
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


main(sys.argv[1])
