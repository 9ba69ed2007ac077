"""The files of deploy/ for a machine without containers: systemd's units, and nginx in front."""

import configparser
import contextlib
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

import support
import tls_support
from serve_process import RINGLOOP, serving
from test_serve import LISTEN_FDS

DEPLOY = support.REPOSITORY / "deploy"
APPLICATION = """
import json

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (message := (await receive())["type"]) != "lifespan.shutdown":
            await send({"type": f"{message}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": message["text"]})
    else:
        shown = {key: scope[key] for key in ("client", "scheme", "http_version")}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(shown).encode()})
"""

pytestmark = pytest.mark.ringloop_only


def unit(name):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / "systemd" / name)
    return parser


def test_systemd_takes_the_units(tmp_path):
    """All but the command, which isn't on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for name in ("app.socket", "app.service"):
        text = (DEPLOY / "systemd" / name).read_text()
        (tmp_path / name).write_text(re.sub("^ExecStart=.*", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "app.service")], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if line.startswith(("app.", str(tmp_path)))]
    assert not complaints
    allowed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "@aio"], capture_output=True, text=True, check=True
    ).stdout
    assert {"io_uring_setup", "io_uring_enter", "io_uring_register"} <= set(allowed.split())


@contextlib.contextmanager
def deployed(arm, folder):
    """Run the command of the unit, on the socket of the other unit; the context has the socket's path."""
    (folder / "app.py").write_text(APPLICATION)
    path = folder / "app.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(int(unit("app.socket")["Socket"]["Backlog"]))
        program, *arguments = shlex.split(unit("app.service")["Service"]["ExecStart"])
        assert program.endswith("/ringloop")
        descriptor = listener.fileno()
        command = [sys.executable, "-c", LISTEN_FDS, str(descriptor), *RINGLOOP, *arguments]
        with serving(arm, command=command, pass_fds=[descriptor], cwd=folder) as server:
            assert server.address == str(path)
            yield server


@pytest.mark.long
def test_the_command_of_the_unit(arm, tmp_path):
    with deployed(arm, tmp_path) as server:
        assert server.get_again()[0] == 200
        server.send(signal.SIGHUP)  # ExecReload
        server.wait_for("Application startup complete", 8)
        assert server.get_again()[0] == 200
        assert server.stop() == 0


@pytest.fixture
def nginx(arm, tmp_path):
    """Run nginx with our configuration, on a free port, in front of the unit's command; yield its address."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        pytest.skip("nginx is not installed")
    port = support.free_port()
    text = (DEPLOY / "nginx.conf").read_text()
    certificate = tls_support.certificate(tls_support.NAME)
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "fullchain.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "privkey.pem")
    for ours, here in (
        ("/run/app.sock", tmp_path / "app.sock"),
        ("listen 443", f"listen {support.HOST}:{port}"),
        ("/etc/ssl/app", tmp_path),
    ):
        assert ours in text
        text = text.replace(ours, str(here))
    folders = "".join(
        f"    {kind}_temp_path {tmp_path}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(
        f"daemon off;\nmaster_process off;\npid {tmp_path}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\n    access_log off;\n{folders}{textwrap.indent(text, '    ')}}}\n"
    )
    command = [program, "-p", str(tmp_path), "-e", "stderr", "-c", str(configuration)]
    with deployed(arm, tmp_path) as server, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            server.get_again()
            deadline = time.monotonic() + support.PATIENCE_S
            while True:
                assert process.poll() is None, process.stderr.read()
                try:
                    socket.create_connection((support.HOST, port)).close()
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            yield support.HOST, port
        finally:
            process.terminate()


@contextlib.contextmanager
def client(address):
    context = tls_support.client_context()
    with (
        socket.create_connection(address, timeout=support.PATIENCE_S) as sock,
        context.wrap_socket(sock, server_hostname=tls_support.NAME) as secure,
    ):
        yield secure


def exchange(secure, fields=""):
    secure.sendall(f"GET / HTTP/1.1\r\nHost: {tls_support.NAME}\r\n{fields}\r\n".encode())
    file = secure.makefile("rb")
    head = {}
    status = file.readline()
    while line := file.readline().strip():
        name, _, value = line.partition(b":")
        head[name.lower()] = value.strip()
    return status, file.read(int(head.get(b"content-length", 0))), file


def test_nginx_tells_the_client_and_the_scheme(nginx):
    with client(nginx) as secure:
        for fields in ("", "X-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Proto: gopher\r\n"):
            status, body, _ = exchange(secure, fields)
            assert status == b"HTTP/1.1 200 OK\r\n"
            assert json.loads(body) == {"client": [support.HOST, 0], "scheme": "https", "http_version": "1.1"}


def test_nginx_forwards_a_websocket(nginx):
    with client(nginx) as secure:
        fields = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        status, _, file = exchange(secure, fields + "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")
        assert status.startswith(b"HTTP/1.1 101 ")
        secure.sendall(b"\x81\x85\0\0\0\0hello")
        assert file.read(7) == b"\x81\x05hello"
