"""Certificates and database servers for the tests with real applications: made once, ended with the tests.

The servers are private ones, on free ports and in temporary folders. The system's own are neither asked nor touched.
"""

import contextlib
import dataclasses
import os
import pathlib
import pwd
import shutil
import socket
import ssl
import subprocess
import tempfile

import pytest

import processes
import support


@dataclasses.dataclass
class Certificate:
    """A self-signed certificate for localhost and 127.0.0.1, in files of PEM."""

    certificate: pathlib.Path
    key: pathlib.Path

    def server_context(self):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def client_context(self):
        return ssl.create_default_context(cafile=self.certificate)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed here: apt-get install openssl")
    folder = tmp_path_factory.mktemp("certificate")
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    # fmt: off
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", made.key, "-out", made.certificate],
        check=True, capture_output=True, timeout=support.PATIENCE_S,
    )
    # fmt: on
    return made


@contextlib.contextmanager
def service_folder(user):
    """Yield a temporary folder that belongs to `user`, with a path short enough for Unix sockets."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ringloop-"))
    try:
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unprivileged_user():
    """Return the account that servers which refuse root run under; None where the tests do not run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    pytest.skip("the tests run as root, and there is no account postgres or nobody to run a server under")


def run_as(user):
    """Return the options of `subprocess` that make a child run under this account alone."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


@dataclasses.dataclass
class Service:
    """Where a private server listens: on this port of 127.0.0.1, with TLS on `tls_port`, and on a Unix socket."""

    port: int
    tls_port: int
    folder: pathlib.Path


@pytest.fixture(scope="session")
def postgres(certificate):
    """Yield a private PostgreSQL: user and database "ringloop", no password, its Unix socket in the service's folder."""
    folders = sorted(map(str, pathlib.Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    server = processes.debian_program("postgres", "postgresql", *folders).resolve()
    user = unprivileged_user()
    identity = {"cwd": "/", **run_as(user)}
    with service_folder(user) as folder:
        data, log = folder / "data", folder / "log"
        initialise = [server.parent / "initdb", "-D", data, "-U", "ringloop", "-A", "trust", "-E", "UTF8", "--no-sync"]
        made = subprocess.run([*initialise, "--locale=C"], capture_output=True, text=True, timeout=60, **identity)
        assert made.returncode == 0, made.stderr
        for source, name in ((certificate.certificate, "server.crt"), (certificate.key, "server.key")):
            shutil.copy(source, data / name)
            shutil.chown(data / name, user or os.getuid())
            (data / name).chmod(0o600)
        port = support.free_port()
        # fmt: off
        settings = [
            "-c", "listen_addresses=127.0.0.1", "-c", f"port={port}", "-c", f"unix_socket_directories={folder}",
            "-c", "ssl=on", "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=60",
            "-c", "dynamic_shared_memory_type=mmap",
        ]
        # fmt: on
        with log.open("wb") as output:
            process = subprocess.Popen(
                [server, "-D", data, *settings], stdin=subprocess.DEVNULL, stdout=output, stderr=output, **identity
            )
        try:
            asked = [server.parent / "pg_isready", "-q", "-h", folder, "-p", str(port), "-U", "ringloop"]
            processes.wait_until(
                lambda: (
                    subprocess.run([*asked, "-d", "postgres"], timeout=support.PATIENCE_S, **identity).returncode == 0
                ),
                process,
                log,
            )
            yield Service(port, port, folder)
        finally:
            # SIGINT is PostgreSQL's fast shutdown: it ends its own children first.
            processes.stop(process, 2)


@pytest.fixture(scope="session")
def redis_server(certificate):
    """Yield a private Redis, with its Unix socket "redis.sock" in the service's folder."""
    server = processes.debian_program("redis-server", "redis-server")
    with service_folder(None) as folder:
        service = Service(support.free_port(), support.free_port(), folder)
        # fmt: off
        command = [
            server, "--bind", "127.0.0.1", "--port", str(service.port), "--save", "", "--appendonly", "no",
            "--dir", folder, "--unixsocket", folder / "redis.sock", "--tls-port", str(service.tls_port),
            "--tls-cert-file", certificate.certificate, "--tls-key-file", certificate.key, "--tls-auth-clients", "no",
            "--tls-ca-cert-file", certificate.certificate,
        ]
        # fmt: on
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            processes.wait_until(lambda: processes.accepts(str(folder / "redis.sock"), socket.AF_UNIX), process, log)
            yield service
        finally:
            processes.stop(process)
