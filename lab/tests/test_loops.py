"""The harness of Python's loops (lab/targets/loops), with its floor in C and the load generator: what it measures, and refuses."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ringlab import generator, preflight

LOOPS = Path(__file__).resolve().parents[1] / "targets" / "loops"
TIMEOUT_S = 120
LATENCIES = {f"latency_ns_{name}" for name in ("mean", "p50", "p95", "p99", "max")}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def harness() -> ModuleType:
    specification = importlib.util.spec_from_file_location("loops_harness", LOOPS / "harness.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # For its dataclasses.
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what build.py makes."""
    folder = tmp_path_factory.mktemp("loops")
    subprocess.run([sys.executable, "-I", str(LOOPS / "build.py"), str(folder)], check=True, timeout=TIMEOUT_S)
    return folder


@pytest.fixture(scope="module")
def load() -> str:
    return str(generator.find())


Measure = Callable[..., dict[str, float]]
Fault = Callable[[str, str], str]


@pytest.fixture
def measure(harness: ModuleType, programs: Path, load: str) -> Measure:
    """Return a function that measures what its words say; a busy machine may leave no time in a short window."""

    def measure(*words: str, loop: str = "floor", window_s: float = 0.1) -> dict[str, float]:
        placement = preflight.place()
        made = harness.Harness(programs, loop, load, window_s, 0.05, placement.server, placement.client)
        if missing := made.missing(words):
            pytest.skip(missing)
        try:
            found: dict[str, float] = made.measure(words)
        except harness.Failed:
            if window_s > 10:
                raise
            return measure(*words, loop=loop, window_s=10 * window_s)
        return found

    return measure


@pytest.mark.parametrize("transport", ["tcp", "unix", "udp", "tls"])
@pytest.mark.parametrize("size", ["64", "60000"])
def test_a_server_is_loaded_over_each_transport(transport: str, size: str, measure: Measure) -> None:
    # Large datagrams of many peers don't fit into one socket's buffer.
    connections = "3" if size == "64" else "1"
    figures = measure("echo", "protocol", transport, size, connections)
    assert figures.keys() >= LATENCIES | {"server_cpu_us", "server_cpu_percent", "client_cpu_fraction", "window_s"}
    assert figures["operations"] > 0
    assert figures["server_cpu_us"] > 0
    assert figures["megabytes_per_s"] == pytest.approx(figures["operations_per_s"] * int(size) / 1e6)
    assert figures["in_flight_average"] > 0


def test_a_loop_of_python_is_loaded(measure: Measure) -> None:
    figures = measure("echo", "streams", "tcp", "1024", "5", loop="asyncio:new_event_loop")
    assert figures["operations"] > 0


def test_an_idle_connection_makes_no_operations_and_a_paced_one_few(measure: Measure) -> None:
    idle = measure("wait", "0")
    assert (idle["operations"], "server_cpu_us" in idle) == (0, False)
    assert idle["server_cpu_percent"] < 50
    paced = measure("wait", "10000", window_s=0.3)
    # Some 30; without a pause there would be thousands. Those that were late may come in the window, too.
    assert 1 <= paced["operations"] <= 300


SERVER = """
import socket, sys, json
bound = socket.socket(socket.AF_INET, getattr(socket, sys.argv[1]))
bound.bind(("127.0.0.1", 0))
if bound.type == socket.SOCK_STREAM:
    bound.listen()
print(json.dumps({{"port": bound.getsockname()[1]}}), flush=True)
{serve}
"""


@pytest.fixture
def faulty(harness: ModuleType, programs: Path, load: str, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Return a function that measures a server which this code serves, and returns why it failed."""

    def fail(transport: str, code: str) -> str:
        made = harness.Harness(programs, "floor", load, 0.1, 0.0, [], [])
        kind = "SOCK_DGRAM" if transport == "udp" else "SOCK_STREAM"
        command = [sys.executable, "-c", SERVER.format(serve=code), kind]
        monkeypatch.setattr(harness.Harness, "server_command", lambda *_: command)
        with pytest.raises(harness.Failed) as failure:
            made.measure(["echo", "protocol", transport, "1000", "1"])
        return str(failure.value)

    return fail


STREAM = "while True:\n  peer, _ = bound.accept()\n  while data := peer.recv(65536):\n    "


@pytest.mark.parametrize(
    ("transport", "code", "reason"),
    [
        ("tcp", STREAM + "peer.sendall(data[::-1])", "wrong echo on connection 0, message 0: byte 0 of 1000 is 0x"),
        ("tcp", STREAM + "peer.close(); break", "connection 0 without an answer to message 0"),
        ("tcp", "peer, _ = bound.accept()\nsys.exit('it has had enough')", "it has had enough"),
        (
            "udp",
            "for number in range(10**9):\n  data, peer = bound.recvfrom(65536)\n  if number != 3: bound.sendto(data, peer)",
            "no answer came to datagram 3 of connection 0 within 5 s",
        ),
        (
            "udp",
            "while True:\n  data, peer = bound.recvfrom(65536); bound.sendto(data[1:], peer)",
            "a datagram of 999 bytes came, and 1000 were sent",
        ),
    ],
    ids=["wrong", "closed", "ended", "lost", "short"],
)
def test_a_server_that_fails_is_told(transport: str, code: str, reason: str, faulty: Fault) -> None:
    assert reason in faulty(transport, code)
