"""TCP sockets of this machine by their ports, asked of the kernel by sock_diag(7).

/proc/net/tcp has the same, but to read it, the kernel goes through its table of all connections, which takes milliseconds where the
machine has much memory, and prints every socket in it.
"""

import errno
import os
import socket
import struct

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, number of the request, port."""
REQUEST = struct.Struct("=BBxxI")
"""The beginning of struct inet_diag_req_v2: family, protocol, states."""
SOCKET_ID = struct.Struct("!HH16s16s4x8s")
"""struct inet_diag_sockid: ports and addresses of both ends, no interface, and a cookie."""
NO_COOKIE = b"\xff" * 8
STATE_OFFSET, INODE_OFFSET = 1, 68
"""In struct inet_diag_msg."""
TCP_ESTABLISHED, TCP_LISTEN = 1, 10
ALL_STATES = 0xFFFFFFFF


def at_port(port: int, state: int) -> set[int]:
    """Return the inodes of the sockets at a local port in a state, without connections that the server hasn't accepted.

    Raise OSError where the kernel can't be asked.
    """
    wanted = SOCKET_ID.pack(port, 0, b"", b"", NO_COOKIE)
    families = (socket.AF_INET, socket.AF_INET6)
    return {inode for family in families for _, inode in ask(family, 1 << state, wanted, NLM_F_DUMP)} - {0}


def other_end(client: socket.socket) -> int:
    """Return the inode of the other end of a connection within this machine, 0 while it isn't accepted yet.

    Raise OSError where there is no such end, or the kernel can't be asked.
    """
    address, port = client.getpeername()[:2]
    own_address, own_port = client.getsockname()[:2]
    packed = (socket.inet_pton(client.family, each) for each in (address, own_address))
    ((state, inode),) = ask(client.family, ALL_STATES, SOCKET_ID.pack(port, own_port, *packed, NO_COOKIE))
    if state == TCP_LISTEN:
        raise OSError(errno.ENOENT, "only a socket that listens")
    return inode


def ask(family: int, states: int, wanted: bytes, flags: int = 0) -> list[tuple[int, int]]:
    """Return the state and the inode of each socket in these states that matches: of one, or with NLM_F_DUMP of all. Raise OSError."""
    body = REQUEST.pack(family, socket.IPPROTO_TCP, states) + wanted
    found: list[tuple[int, int]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | flags, 1, 0) + body)
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind = HEADER.unpack_from(data)[:2]
                content = data[HEADER.size : length]
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    # An error of a dump is in the message that ends it.
                    code = -struct.unpack_from("=i", content)[0] if len(content) >= 4 else 0
                    if code != 0 or kind == NLMSG_ERROR:
                        raise OSError(code, os.strerror(code))
                    return found
                found.append((content[STATE_OFFSET], struct.unpack_from("=I", content, INODE_OFFSET)[0]))
                data = data[(length + 3) & ~3 :]
            if not flags:
                return found
