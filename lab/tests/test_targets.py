"""The contract of every program in lab/targets: what a server must do before its figures mean anything.

Each test runs on each arm that this machine has the tools for; of the others test_arm_builds is skipped, with the reason and the
remedy.
`pytest lab/tests/test_targets.py -k go` runs those of one target.
"""

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import PATIENCE, patient
from ringlab import manifest, process, system_calls
from ringlab.manifest import Arm, Presence
from ringlab.process import Server

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "lab.md"
HOST = "127.0.0.1"
OTHER_HOST = "127.0.0.2"
FOREIGN_HOST = "192.0.2.1"
"""Of the addresses that RFC 5737 keeps for documentation: no machine has it."""
LISTENS_EVERYWHERE = {"atacama"}
"""The targets that check the address, and listen on it and on all others: their libraries take none."""
ANSWER_TIMEOUT_S = 60
RUN_TIMEOUT_S = 240  # A virtual machine under strace on a busy machine takes half a minute.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b"Hello, World!"
ANSWER_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13"

# The first test of a target builds it.
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("patient_probes")]

ALL = [patient(arm) for arm in manifest.discover()]
BUILT: set[Path] = set()


def detect(target: str) -> dict[str, Presence]:
    """Find out which arms of a target can run here."""
    cache: dict[tuple[str, str], Presence] = {}
    return {arm.name: manifest.detect_all(arm, cache) for arm in ALL if arm.target == target}


PRESENCE: dict[str, Presence] = {}
# Each process of a run in parallel looks for itself, all at once, and must find the same.
with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(os.cpu_count()) as pool:
    patch.setattr(manifest, "DETECT_TIMEOUT_S", PATIENCE * manifest.DETECT_TIMEOUT_S)
    for found in pool.map(detect, sorted({arm.target for arm in ALL})):
        PRESENCE |= found


def serving(workload: str) -> list[Any]:
    """Return the arms that serve a workload and can run here, as parameters."""
    present = [arm for arm in ALL if not PRESENCE[arm.name].skipped]
    return [pytest.param(arm, id=arm.name) for arm in present if workload in arm.workloads]


needs_guide = pytest.mark.skipif(not GUIDE.exists(), reason="the guide is in ringloop's repository")


@needs_guide
def test_example_of_the_guide_is_a_manifest(tmp_path: Path) -> None:
    _, _, guide = GUIDE.read_text().partition("\n## How to add a target")
    _, _, rest = guide.partition("```toml\n")
    path = tmp_path / "hello" / "target.toml"
    path.parent.mkdir()
    path.write_text(textwrap.dedent(rest.partition("```")[0]))
    (arm,) = manifest.read_target(path, tmp_path)
    assert arm.workloads == ("bind", "http", "rtt", "echo")


@needs_guide
def test_the_guide_shows_the_78_bytes_of_a_canned_answer() -> None:
    _, _, rest = GUIDE.read_text().partition("```http\n")
    shown = textwrap.dedent(rest.partition("```")[0]).rstrip("\n").replace("\n", "\r\n").encode()
    assert shown == ANSWER_HEAD + b"\r\n\r\n" + BODY
    assert len(shown) == 78


@pytest.mark.parametrize("arm", [pytest.param(arm, id=arm.name) for arm in ALL])
def test_arm_builds(arm: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    presence = PRESENCE[arm.name]
    if presence.skipped:
        pytest.skip(f"{presence.skipped}; install it with: {presence.install}")
    if os.environ.get("CI"):
        # Nothing is measured there, and link-time optimisation takes longer than all these tests.
        monkeypatch.setenv("CARGO_PROFILE_RELEASE_LTO", "off")
        monkeypatch.setenv("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
    manifest.build(arm, BUILT)


@pytest.mark.parametrize("arm", [pytest.param(arm, id=arm.name) for arm in ALL])
def test_arm_can_be_told_where_to_listen(arm: Arm) -> None:
    # This needs no tools, so no target escapes it.
    assert [kind for kind, text in arm.commands.items() if kind in manifest.SERVERS and "{host}" not in text] == []


@pytest.fixture(scope="module", autouse=True)
def descriptors() -> None:
    """Allow 500 connections and a few more, in programs whose soft limit may be 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))


@pytest.fixture(scope="module", params=serving("echo"))
def echo_arm(request: pytest.FixtureRequest) -> Arm:
    arm: Arm = request.param
    manifest.build(arm, BUILT)
    return arm


@pytest.fixture(scope="module")
def echo(echo_arm: Arm) -> Iterator[Server]:
    with Server(echo_arm, "echo", echo_arm.declares.workers) as server:
        yield server
        check_ending(server)


@pytest.fixture(scope="module", params=serving("http"))
def http_arm(request: pytest.FixtureRequest) -> Arm:
    arm: Arm = request.param
    manifest.build(arm, BUILT)
    return arm


@pytest.fixture(scope="module")
def http(http_arm: Arm) -> Iterator[Server]:
    with Server(http_arm, "http", http_arm.declares.workers) as server:
        yield server
        check_ending(server)


@pytest.fixture(scope="module", params=serving("discard"))
def discard_arm(request: pytest.FixtureRequest) -> Arm:
    arm: Arm = request.param
    manifest.build(arm, BUILT)
    return arm


@pytest.fixture(scope="module")
def discard(discard_arm: Arm) -> Iterator[Server]:
    with Server(discard_arm, "discard", discard_arm.declares.workers) as server:
        yield server
        check_ending(server)


def check_ending(server: Server) -> None:
    """End a server that has lived until now, as its manifest says."""
    ending = server.stop()
    assert not ending.by_itself, f"it ended before it was asked to: {ending}"
    assert not ending.complaint


def connect(server: Server) -> socket.socket:
    """Return a connection that sends at once what it is given."""
    connection = socket.create_connection((HOST, server.port), timeout=ANSWER_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket, count: int) -> bytes:
    """Return exactly `count` bytes."""
    received = bytearray()
    while len(received) < count:
        part = connection.recv(min(count - len(received), 1 << 20))
        assert part, f"the connection ended after {len(received)} of {count} bytes"
        received += part
    return bytes(received)


@contextlib.contextmanager
def sending(connection: socket.socket, data: bytes) -> Iterator[None]:
    """Send from a thread, as a client that sends and receives at once."""
    failures: list[BaseException] = []

    def send() -> None:
        try:
            connection.sendall(data)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failures


def seeded(count: int) -> bytes:
    """Return bytes that no accident repeats."""
    return random.Random(count).randbytes(count)


# --- echo ---


def test_echo_of_split_messages(echo: Server) -> None:
    message = seeded(300)
    with connect(echo) as connection:
        for index in range(len(message)):
            connection.sendall(message[index : index + 1])
        assert receive(connection, len(message)) == message


def test_echo_of_coalesced_messages(echo: Server) -> None:
    messages = seeded(64 * 500)
    with connect(echo) as connection:
        connection.sendall(messages)
        assert receive(connection, len(messages)) == messages


def test_echo_of_pipelined_messages(echo: Server) -> None:
    messages = [seeded(1000 + number) for number in range(100)]
    with connect(echo) as connection:
        for message in messages:
            connection.sendall(message)
        for message in messages:
            assert receive(connection, len(message)) == message


def test_echo_back_and_forth(echo: Server) -> None:
    with connect(echo) as connection:
        for size in [1, 64, 1024, 16_384, 65_536, 65_537, 131_072, 1] * 3:
            message = seeded(size)
            with sending(connection, message):
                assert receive(connection, size) == message


def test_echo_of_a_megabyte(echo: Server) -> None:
    message = seeded(1_000_000)
    with connect(echo) as connection, sending(connection, message):
        assert receive(connection, len(message)) == message


def test_echo_to_a_client_that_does_not_read_at_first(echo: Server) -> None:
    message = seeded(24_000_000)  # More than the kernel's buffers of both directions hold.
    with connect(echo) as connection:
        connection.setblocking(False)
        sent = 0
        waits = 0
        while sent < len(message) and waits < 20:
            try:
                sent += connection.send(message[sent : sent + 1_000_000])
                waits = 0
            except BlockingIOError:
                waits += 1
                threading.Event().wait(0.01)
        connection.settimeout(ANSWER_TIMEOUT_S)
        with sending(connection, message[sent:]):
            assert receive(connection, len(message)) == message


def test_echo_ends_after_half_close(echo_arm: Arm, echo: Server) -> None:
    message = seeded(3_000_000)
    with connect(echo) as connection:

        def send() -> None:
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        received = receive(connection, len(message))
        thread.join()
        assert received == message
        if echo_arm.declares.half_close:
            assert connection.recv(1) == b""


def test_echo_closes_a_connection_that_ends_without_a_word(echo_arm: Arm, echo: Server) -> None:
    if not echo_arm.declares.half_close:
        pytest.skip("it declares that it doesn't close a connection that its client has ended")
    with connect(echo) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_echo_on_500_connections(echo: Server) -> None:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(echo)) for _ in range(500)]
        for turn in range(2):
            for number, connection in enumerate(connections):
                connection.sendall(seeded(100 + number + turn))
            for number, connection in reversed(list(enumerate(connections))):
                assert receive(connection, 100 + number + turn) == seeded(100 + number + turn)


def test_echo_survives_clients_that_reset(echo: Server) -> None:
    with connect(echo) as bystander:
        for _ in range(30):
            with connect(echo) as connection:
                connection.sendall(seeded(200_000))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            bystander.sendall(b"still there?")
            assert receive(bystander, 12) == b"still there?"


# --- http ---


def receive_answer(connection: socket.socket, rest: bytes = b"") -> tuple[int, bytes, bytes, bytes]:
    """Return status, head and body of one answer, and what came behind it."""
    while b"\r\n\r\n" not in rest:
        part = connection.recv(1 << 16)
        assert part, f"the connection ended within the head of an answer: {rest!r}"
        rest += part
    head, _, rest = rest.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    assert b"transfer-encoding" not in headers
    length = int(headers[b"content-length"])
    while len(rest) < length:
        part = connection.recv(1 << 16)
        assert part, f"the connection ended within the body of an answer: {rest!r}"
        rest += part
    return int(status.split()[1]), head, rest[:length], rest[length:]


def test_http_answers_and_keeps_the_connection(http: Server) -> None:
    with connect(http) as connection:
        for _ in range(20):
            connection.sendall(REQUEST)
            status, head, body, rest = receive_answer(connection)
            assert (status, body, rest) == (200, BODY, b"")
            assert head.startswith(b"HTTP/1.1 ")
            assert b"connection: close" not in head.lower()


def test_http_answers_pipelined_requests(http: Server) -> None:
    with connect(http) as connection:
        connection.sendall(REQUEST * 16)
        rest = b""
        for _ in range(16):
            status, _, body, rest = receive_answer(connection, rest)
            assert (status, body) == (200, BODY)
        assert rest == b""


def test_http_answers_a_split_request(http: Server) -> None:
    with connect(http) as connection:
        for _ in range(3):
            for index in range(len(REQUEST)):
                connection.sendall(REQUEST[index : index + 1])
            assert receive_answer(connection)[::2] == (200, BODY)


def test_http_answers_requests_cut_anywhere(http: Server) -> None:
    three = REQUEST * 3
    with connect(http) as connection:
        for cut in range(1, len(three), 7):
            connection.sendall(three[:cut])
            connection.sendall(three[cut:])
            rest = b""
            for _ in range(3):
                status, _, body, rest = receive_answer(connection, rest)
                assert (status, body) == (200, BODY)
            assert rest == b""


def test_http_answers_a_request_of_many_headers(http: Server) -> None:
    headers = b"".join(b"X-Header-%d: %s\r\n" % (number, b"value" * 8) for number in range(40))
    with connect(http) as connection:
        for _ in range(3):
            connection.sendall(REQUEST[:-2] + headers + b"\r\n")
            assert receive_answer(connection)[::2] == (200, BODY)


def test_http_on_500_connections(http: Server) -> None:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(http)) for _ in range(500)]
        for _ in range(2):
            for connection in connections:
                connection.sendall(REQUEST)
            for connection in connections:
                assert receive_answer(connection)[::2] == (200, BODY)


def test_http_survives_clients_that_reset(http: Server) -> None:
    with connect(http) as bystander:
        for _ in range(30):
            with connect(http) as connection:
                connection.sendall(REQUEST * 3)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            bystander.sendall(REQUEST)
            assert receive_answer(bystander)[::2] == (200, BODY)


def test_http_parser_is_what_is_declared(http_arm: Arm, http: Server) -> None:
    if not http_arm.declares.parser:
        pytest.skip("it declares no parser")
    with connect(http) as connection:
        connection.sendall(REQUEST.replace(b"GET / ", b"GET /there/is/nothing/here "))
        status = receive_answer(connection)[0]
    with connect(http) as connection:
        connection.sendall(b"this is\x00no request\r\nat:all\r\n\r\n")
        received = connection.recv(4096)
    if http_arm.declares.parser == "real":
        assert status == 404
        assert not received.startswith(b"HTTP/1.1 200"), "a parser refuses what is no request"
    else:
        assert status == 200
        # The same bytes from each: who sends more is measured for another work.
        with connect(http) as connection:
            connection.sendall(REQUEST)
            _, head, body, _ = receive_answer(connection)
        assert head == ANSWER_HEAD
        assert body == BODY


# --- discard ---


def end_and_count(connection: socket.socket) -> bytes:
    """End sending; return all that is answered."""
    connection.shutdown(socket.SHUT_WR)
    received = b""
    while b"\n" not in received and (part := connection.recv(4096)):
        received += part
    return received


def test_discard_counts_what_was_sent(discard_arm: Arm, discard: Server) -> None:
    for size in (0, 1, 65_535, 65_536, 65_537, 24_000_000):
        with connect(discard) as connection:
            connection.sendall(bytes(size))
            assert end_and_count(connection) == b"%d\n" % size
            if discard_arm.declares.half_close:
                assert connection.recv(1) == b""


def test_discard_counts_what_comes_byte_by_byte(discard: Server) -> None:
    with connect(discard) as connection:
        for _ in range(300):
            connection.sendall(b"x")
        assert end_and_count(connection) == b"300\n"


def test_discard_says_nothing_before_the_end(discard: Server) -> None:
    with connect(discard) as connection:
        connection.sendall(seeded(1_000_000))
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(ANSWER_TIMEOUT_S)
        assert end_and_count(connection) == b"1000000\n"


def test_discard_on_500_connections(discard: Server) -> None:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(discard)) for _ in range(500)]
        for turn in range(2):
            for number, connection in enumerate(connections):
                connection.sendall(bytes(number + turn))
        for number, connection in reversed(list(enumerate(connections))):
            assert end_and_count(connection) == b"%d\n" % (2 * number + 1)


def test_discard_survives_clients_that_reset(discard: Server) -> None:
    with connect(discard) as bystander:
        for _ in range(30):
            with connect(discard) as connection:
                connection.sendall(seeded(200_000))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            bystander.sendall(b"still there?")
        assert end_and_count(bystander) == b"360\n"


# --- all: what is declared, starting and ending ---


def check_options(server: Server) -> None:
    checks = process.verify(server)
    assert not [check for check in checks if check.status == "violated"]
    declared = {name for name in ("backlog", "nodelay") if getattr(server.arm.declares, name) is not None}
    assert declared <= {check.name for check in checks}
    for check in checks:
        if check.status == "unknown":
            pytest.skip(f"{check.name}: {check.text}")


def test_echo_options_are_what_is_declared(echo: Server) -> None:
    check_options(echo)


def test_http_options_are_what_is_declared(http: Server) -> None:
    check_options(http)


def test_discard_options_are_what_is_declared(discard: Server) -> None:
    check_options(discard)


def test_echo_ends_at_the_signal_with_connections_open(echo_arm: Arm) -> None:
    with Server(echo_arm, "echo", echo_arm.declares.workers) as server, connect(server), connect(server) as busy:
        busy.sendall(b"here")
        assert receive(busy, 4) == b"here"
        check_ending(server)


def test_http_ends_at_the_signal_with_connections_open(http_arm: Arm) -> None:
    with Server(http_arm, "http", http_arm.declares.workers) as server, connect(server) as connection:
        connection.sendall(REQUEST)
        assert receive_answer(connection)[0] == 200
        check_ending(server)


def check_refusal(arm: Arm, kind: str, host: str, port: int) -> None:
    """Start a server that can't listen there."""
    done = subprocess.run(
        arm.command(kind, host=host, port=port, workers=1), cwd=arm.folder, env=arm.child_environment(),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode > 0
    assert "listening on" not in done.stdout
    assert done.stderr.strip(), "it says why"


def check_port_in_use(arm: Arm, kind: str) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        check_refusal(arm, kind, HOST, other.getsockname()[1])


def test_echo_says_that_the_port_is_in_use(echo_arm: Arm) -> None:
    check_port_in_use(echo_arm, "echo")


def test_http_says_that_the_port_is_in_use(http_arm: Arm) -> None:
    check_port_in_use(http_arm, "http")


def check_place(arm: Arm, kind: str) -> None:
    with Server(arm, kind, arm.declares.workers, host=OTHER_HOST) as server:
        # Asked of the kernel: at another address the same port may belong to somebody else.
        pids = server.tree()
        sockets = [each for each in psutil.net_connections("tcp") if each.pid in pids]
        places = {each.laddr for each in sockets if each.status == psutil.CONN_LISTEN}
        host = "0.0.0.0" if arm.target in LISTENS_EVERYWHERE else OTHER_HOST
        assert places == {(host, server.port)}
        socket.create_connection((OTHER_HOST, server.port), timeout=ANSWER_TIMEOUT_S).close()


def test_echo_listens_where_it_is_told(echo_arm: Arm) -> None:
    check_place(echo_arm, "echo")


def test_http_listens_where_it_is_told(http_arm: Arm) -> None:
    check_place(http_arm, "http")


def test_discard_listens_where_it_is_told(discard_arm: Arm) -> None:
    check_place(discard_arm, "discard")


def test_echo_refuses_an_address_that_the_machine_does_not_have(echo_arm: Arm) -> None:
    check_refusal(echo_arm, "echo", FOREIGN_HOST, process.free_port())


def test_http_refuses_an_address_that_the_machine_does_not_have(http_arm: Arm) -> None:
    check_refusal(http_arm, "http", FOREIGN_HOST, process.free_port())


@pytest.mark.parametrize("arm", [arm for arm in serving("echo") if arm.values[0].declares.max_workers != 1])
def test_echo_on_two_workers(arm: Arm) -> None:
    manifest.build(arm, BUILT)
    with Server(arm, "echo", 2) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(40)]
        for connection in connections:
            connection.sendall(b"to one of two")
        for connection in connections:
            assert receive(connection, 13) == b"to one of two"
        check_ending(server)


# --- bind ---


@pytest.fixture(params=serving("bind"))
def bind_arm(request: pytest.FixtureRequest) -> Arm:
    arm: Arm = request.param
    manifest.build(arm, BUILT)
    return arm


def run_bind(arm: Arm, mode: str, count: int, concurrent: int, *before: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*before, *arm.command("bind", mode=mode, count=count, concurrent=concurrent)], cwd=arm.folder,
        env=arm.child_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("concurrent", [1, 50])
@pytest.mark.parametrize("mode", ["bind", "listen", "accept"])
def test_bind_tells_operations_and_time(bind_arm: Arm, mode: str, concurrent: int) -> None:
    if mode not in bind_arm.declares.bind_modes and bind_arm.name == "tml":
        pytest.skip("what a program of others does with a mode that it doesn't declare is its own business")
    done = run_bind(bind_arm, mode, 120, concurrent)
    if mode not in bind_arm.declares.bind_modes:
        assert done.returncode > 0, "a mode that isn't declared is refused"
        assert done.stderr.strip(), "it says why"
        return
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["operations"] == (120 if concurrent == 1 else 150), "each task does as many, rounded up"
    assert result["ns"] > 0


def count_calls(arm: Arm, mode: str, count: int, log: Path) -> tuple[int, int, int]:
    """Return how often bind, listen and connect were called for `count` operations and what goes before them."""
    traced = ("strace", "-f", "-qq", "-o", str(log), "-e", "trace=bind,listen,connect,io_uring_setup")
    done = run_bind(arm, mode, count, 1, *traced)
    if "ptrace" in done.stderr.lower():
        pytest.skip(f"strace is not let trace here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    calls = log.read_text()
    if "io_uring_setup" in calls and " bind(" not in calls:
        pytest.skip("it binds by io_uring, which strace doesn't see")
    on_loopback = [line for line in calls.splitlines() if 'inet_addr("127.0.0.1")' in line]
    binds, connects = (sum(f" {call}(" in line for line in on_loopback) for call in ("bind", "connect"))
    # A ring's connections are not seen by strace.
    return binds, calls.count(" listen("), binds if "io_uring_setup" in calls and mode == "accept" else connects


def test_bind_does_what_it_times(bind_arm: Arm, tmp_path: Path) -> None:
    if not shutil.which("strace"):
        pytest.skip("system calls are counted by strace; install it with: apt-get install -y strace")
    for mode in bind_arm.declares.bind_modes:
        # Some warm up with operations that they don't time: what 50 more operations add is counted.
        fewer, more = (count_calls(bind_arm, mode, count, tmp_path / f"{mode}{count}") for count in (10, 60))
        binds, listens, connects = (after - before for before, after in zip(fewer, more, strict=True))
        assert (binds, listens) == (50, 0 if mode == "bind" else 50)
        # Some call it a second time, to hear how the first call has ended.
        assert connects >= 50 if mode == "accept" else connects == 0


# --- system calls ---

READS = ("read", "readv", "recvfrom", "recvmsg")


def largest_read(log: str) -> int:
    """Return the largest length that was asked of a socket, in what `strace -f -y -s 0` wrote; 0 where nothing was."""
    begun: dict[str, str] = {}
    largest = 0
    for line in log.splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith(" <unfinished ...>"):
            begun[thread] = call.removesuffix(" <unfinished ...>")
            continue
        if call.startswith("<... "):
            call = begun.pop(thread, "") + call.partition(" resumed>")[2]
        if found := re.match(rf"({'|'.join(READS)})\(\d+<(?:TCP|socket)", call):
            # Of one buffer the length comes after its (cut) content; of several each has its own.
            one = re.search(r'(?:"\.*|NULL|0x\w+), (\d+)[,)]', call) if found[1] in ("read", "recvfrom") else None
            lengths = [one[1]] if one else re.findall(r"iov_len=(\d+)", call)
            largest = max(largest, sum(map(int, lengths)))
    return largest


@pytest.mark.parametrize(
    ("log", "largest"),
    [
        ("", 0),
        ('7 read(3</etc/passwd>, ""..., 4096) = 4096', 0),
        ('7 recvfrom(5<TCP:[127.0.0.1:1->127.0.0.1:2]>, ""..., 65536, 0, NULL, NULL) = 10', 65536),
        ('7 read(5<socket:[1]>, "", 512) = 0\n7 read(5<socket:[1]>, 0x7f, 256) = -1 EAGAIN (Again)', 512),
        ("7 recvmsg(5<TCP:[1]>, {msg_iov=[{iov_base=..., iov_len=10}, {iov_base=..., iov_len=20}], msg_iovlen=2}, 0) = 9", 30),
        ('7 read(5<TCP:[1]>,  <unfinished ...>\n8 futex(1) = 0\n7 <... read resumed>""..., 77) = 7', 77),
        ("7 <... read resumed>, 99) = 7", 0),
        ('7 readv(6<socket:[1]>, [{iov_base=""..., iov_len=65536}], 1) = 65536', 65536),
    ],
)  # fmt: skip
def test_largest_read_of_a_log(log: str, largest: int) -> None:
    assert largest_read(log) == largest


def trace_reads(server: Server, talk: Callable[[bytes], None], log: Path) -> tuple[str, int]:
    """Return the calls by which strace sees a server read from a client, and its largest read; 0 where a ring reads by itself."""
    if server.arm.declares.buffer_bytes is None:
        pytest.skip("it declares no buffer")
    if not shutil.which("strace"):
        pytest.skip("what is read is seen by strace; install it with: apt-get install -y strace")
    pids, traced = [str(pid) for pid in server.tree()], ",".join((*READS, "splice", "io_uring_enter"))
    # -v: with -s 0 alone, some versions leave out the buffers of readv, too, and with them their lengths.
    command = ["strace", "-f", "-qq", "-y", "-v", "-s", "0", "-o", str(log), "-e", f"trace={traced}"]
    for pid in pids:
        command += ["-p", pid]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            # Threads of the kernel that work for a ring can't be traced.
            deadline = time.monotonic() + system_calls.ATTACH_TIMEOUT_S
            seen_by = deadline + ANSWER_TIMEOUT_S
            while time.monotonic() < deadline and not all(map(system_calls.is_traced, pids)):
                if tracer.poll() is not None:
                    pytest.skip(f"strace is not let trace here: {tracer.communicate()[1]}")
                time.sleep(0.01)
            data, calls = seeded(1 << 20), ""
            # What a ring reads by itself strace doesn't see.
            while not (largest_read(calls) or "io_uring_enter(" in calls) and time.monotonic() < seen_by:
                talk(data)
                calls = log.read_text()
        finally:
            tracer.send_signal(signal.SIGINT)
    calls = log.read_text()
    found = largest_read(calls)
    assert found > 0 or "io_uring_enter(" in calls
    return calls, found


def test_echo_reads_with_at_most_the_buffer_that_is_declared(echo: Server, tmp_path: Path) -> None:
    def talk(data: bytes) -> None:
        with connect(echo) as connection, sending(connection, data):
            assert receive(connection, len(data)) == data

    _, found = trace_reads(echo, talk, tmp_path / "log")
    assert found <= (echo.arm.declares.buffer_bytes or 0)


def test_discard_reads_what_it_counts_into_the_buffer_that_is_declared(discard: Server, tmp_path: Path) -> None:
    def talk(data: bytes) -> None:
        with connect(discard) as connection:
            connection.sendall(data)
            assert end_and_count(connection) == b"%d\n" % len(data)

    calls, found = trace_reads(discard, talk, tmp_path / "log")
    assert found <= (discard.arm.declares.buffer_bytes or 0)
    # Both throw bytes away within the kernel.
    assert "MSG_TRUNC" not in calls
    assert "splice(" not in calls


# --- Python ---


def test_a_debugging_build_of_python_is_refused() -> None:
    # The mark of such a build, by which CPython's own tests know it, too.
    pretence = "import runpy, sys; sys.gettotalrefcount = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    server = next(arm for arm in ALL if arm.name == "asyncio-protocol").folder / "server.py"
    for api in ("protocol", "threaded"):
        words = [sys.executable, "-c", pretence, server, "probe", "--api", api]
        done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
        assert done.returncode == 1
        assert f"at {sys.executable} is a debugging build" in done.stderr
