"""`ringloop serve` with TLS: certificates, clients' certificates, and certificates that change."""

import asyncio
import concurrent.futures
import contextlib
import gc
import json
import os
import re
import signal
import socket
import ssl
import time
import weakref

import h2.connection
import h2.events
import pytest
import trustme

import support
from applications import LARGE, answer
from ringloop.http import Config, Server
from ringloop.http._errors import StartupError
from serve_process import fails, serving

# The server is a process of its own, and above the loop: few tests need both backends.
pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]
both_backends = pytest.mark.any_backend(matters=True)


class Files:
    """A certificate and its key in files, of an authority that clients trust."""

    def __init__(self, folder):
        self.authority = trustme.CA()
        self.certificate, self.key, self.ca = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.renew()

    def issue(self, name="localhost"):
        return self.authority.issue_cert(name, key_type=trustme.KeyType.ECDSA)

    def renew(self):
        """Put another certificate into the files, one after the other."""
        made = self.issue()
        for path, parts in ((self.certificate, made.cert_chain_pems), (self.key, [made.private_key_pem])):
            new = path.with_suffix(".new")
            new.write_bytes(b"".join(part.bytes() for part in parts))
            os.replace(new, path)

    def client_context(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority.configure_trust(context)
        return context

    def options(self):
        return ("--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.key))


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def serial_number(program, context, name="localhost"):
    """Return that of the certificate which a new connection is shown; the connection is used for a request."""
    with context.wrap_socket(program.connect(), server_hostname=name) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        return sock.getpeercert()["serialNumber"]


def ask_http2(sock, path):
    """Return what the server answers on a connection of HTTP/2."""
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    head = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
    connection.send_headers(1, head, end_stream=True)
    sock.sendall(connection.data_to_send())
    body = b""
    while True:
        for event in connection.receive_data(sock.recv(65536)):
            if isinstance(event, h2.events.DataReceived):
                body += event.data
            elif isinstance(event, h2.events.StreamEnded):
                return json.loads(body)


@both_backends
def test_https(arm, files):
    with serving(arm, "applications:app", *files.options()) as program:
        context = files.client_context()
        assert program.get_json("/scope", context=context)["scheme"] == "https"
        assert f"Ringloop running on https://127.0.0.1:{program.address[1]} " in program.output
        # Somebody who doesn't speak TLS hurts nobody.
        with program.connect() as sock:
            sock.sendall(b"nonsense in place of TLS")
            while sock.recv(65536):
                pass
        assert program.get("/", context=context)[0] == 200
        assert program.stop() == -signal.SIGTERM


@both_backends
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_plain_http_on_a_port_for_tls_is_told(arm, files, method):
    with serving(arm, "applications:app", *files.options()) as program:
        client = program.client()
        try:
            port = client.sock.getsockname()[1]
            client.request(method, "/", body=b"x" if method == "POST" else None)
            response = client.getresponse()
            assert response.status == 400
            expected = b"This port speaks HTTPS. Use https:// in place of http://.\n"
            assert response.read() == (b"" if method == "HEAD" else expected)
        finally:
            client.close()
        text = f"Invalid HTTP request received. Client 127.0.0.1:{port} gets 400: plain HTTP on a port for HTTPS"
        program.wait_for(re.escape(f"WARNING:  {text}\n"))
        assert program.get("/", context=files.client_context())[0] == 200


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_a_hangup_reloads_the_certificate(arm, files, workers):
    # The connection that stays open below holds up the end of a worker.
    options = (*files.options(), *workers, "--timeout-graceful-shutdown", "0.5")
    with serving(arm, "applications:app", *options) as program:
        context = files.client_context()
        program.wait_for("Application startup complete", 2 if workers else 1)
        old = serial_number(program, context)
        with context.wrap_socket(program.connect(), server_hostname="localhost") as kept:
            files.renew()
            program.send(signal.SIGHUP)
            if workers:
                program.wait_for("Application startup complete", 4)
                program.wait_for("Finished server process", 2)
            else:
                program.wait_for("The TLS certificate was reloaded.")
                kept.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert kept.recv(65536).startswith(b"HTTP/1.1 200"), "open connections go on"
        assert serial_number(program, context) != old


def test_a_change_of_the_files_reloads_the_certificate(arm, files):
    with serving(arm, "applications:app", *files.options()) as program:
        context = files.client_context()
        seen = {serial_number(program, context)}
        for count in (1, 2):
            files.renew()
            program.wait_for("The TLS certificate was reloaded.", count)
            seen.add(serial_number(program, context))
            assert len(seen) == count + 1
        # Clients that send no name, too.
        nameless = files.client_context()
        nameless.check_hostname = False
        assert serial_number(program, nameless, None) in seen
        assert program.stop() == -signal.SIGTERM


@both_backends
@pytest.mark.parametrize(
    ("options", "offered", "chosen"),
    [
        ((), ["h2", "http/1.1"], "h2"),
        ((), ["http/1.1", "h2"], "h2"),
        ((), ["http/1.1"], "http/1.1"),
        ((), None, None),
        (("--no-http2",), ["h2", "http/1.1"], "http/1.1"),
    ],
)
def test_alpn(arm, files, options, offered, chosen):
    with serving(arm, "applications:app", *files.options(), *options) as program:
        for reloads in range(2):
            context = files.client_context()
            if offered:
                context.set_alpn_protocols(offered)
            with context.wrap_socket(program.connect(), server_hostname="localhost") as sock:
                assert sock.selected_alpn_protocol() == chosen
                if chosen == "h2":
                    assert ask_http2(sock, "/scope")["scheme"] == "https"
                else:
                    sock.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    assert sock.recv(65536).startswith(b"HTTP/1.1 200")
            if not reloads:
                files.renew()
                program.send(signal.SIGHUP)
                program.wait_for("The TLS certificate was reloaded.")
        assert program.stop() == -signal.SIGTERM


def test_files_that_are_wrong_leave_the_old_certificate(arm, files):
    with serving(arm, "applications:app", *files.options()) as program:
        context = files.client_context()
        old = serial_number(program, context)
        for content in (b"", b"nonsense", files.issue().private_key_pem.bytes()):
            files.key.write_bytes(content)
            program.send(signal.SIGHUP)
            program.wait_for("ERROR:    The TLS certificate could not be reloaded, the old one stays:")
            assert serial_number(program, context) == old
        files.key.unlink()
        program.send(signal.SIGHUP)
        assert serial_number(program, context) == old
        files.renew()
        program.wait_for("The TLS certificate was reloaded.")
        assert serial_number(program, context) != old


@both_backends
def test_clients_certificates(arm, files):
    options = ("--ssl-ca-certs", str(files.ca), "--ssl-cert-reqs", str(int(ssl.CERT_REQUIRED)))
    with serving(arm, "applications:app", *files.options(), *options) as program:
        stranger, known = files.client_context(), files.client_context()
        files.issue("client").configure_cert(known)
        assert program.get("/", context=known)[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            program.get("/", context=stranger)
        # Both still hold for the certificate after the first.
        files.renew()
        program.wait_for("The TLS certificate was reloaded.")
        assert program.get("/", context=known)[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            program.get("/", context=stranger)


def ask(sock):
    sock.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return sock.recv(65536)[:12]


@both_backends
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_ends_with_the_authority_of_its_client(arm, files, version):
    """Otherwise a client whose authority was removed could go on for as long as its session can be resumed."""
    options = ("--ssl-ca-certs", str(files.ca), "--ssl-cert-reqs", str(int(ssl.CERT_REQUIRED)))
    # The connection that stays open may rest for long.
    with serving(arm, "applications:app", *files.options(), *options, "--timeout-keep-alive", "100") as program:
        context = files.client_context()
        files.issue("client").configure_cert(context)
        context.maximum_version = version

        def connect(session=None):
            return context.wrap_socket(program.connect(), server_hostname="localhost", session=session)

        with connect() as early:
            assert ask(early) == b"HTTP/1.1 200"
            with connect(early.session) as resumed:
                assert ask(resumed) == b"HTTP/1.1 200"
                assert resumed.session_reused
            trustme.CA().cert_pem.write_to_path(str(files.ca))
            program.send(signal.SIGHUP)
            program.wait_for("The TLS certificate was reloaded.")

            def resume():
                with pytest.raises((ssl.SSLError, ConnectionError)), connect(early.session) as late:
                    assert ask(late) == b""
                    raise ConnectionError

            # In a thread of its own, because what OpenSSL says about the failure stays in the thread's queue of errors.
            with concurrent.futures.ThreadPoolExecutor() as executor:
                executor.submit(resume).result()
            assert ask(early) == b"HTTP/1.1 200", "what is open stays open"


BROKEN = b"-----BEGIN %b-----\nAAAA\n-----END %b-----\n"


def encrypt(files):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    kind = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, *kind))


def test_a_key_with_a_password(arm, files):
    encrypt(files)
    with serving(arm, "applications:app", *files.options(), "--ssl-keyfile-password", "secret") as program:
        assert program.get("/", context=files.client_context())[0] == 200
    status, output = fails(arm, "applications:app", *files.options(), "--ssl-keyfile-password", "wrong")
    assert status == 3
    text = f"the private key in '{files.key}' can't be read, or its password is wrong: "
    assert f"ERROR:    TLS can't be set up: {text}" in output
    status, output = fails(arm, "applications:app", *files.options())
    assert status == 3
    assert "the TLS key is encrypted: ssl_keyfile_password (--ssl-keyfile-password) is missing" in output


@pytest.mark.parametrize("option", ["--ssl-keyfile", "--ssl-ca-certs"])
def test_a_missing_file_is_named(arm, files, option):
    status, output = fails(arm, "applications:app", *files.options(), option, "/nowhere")
    assert status == 3
    assert "ERROR:    TLS can't be set up: [Errno 2] No such file or directory: '/nowhere'" in output


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("certificate", b"nonsense", "'FILE' has no certificate in PEM format"),
        ("key", b"nonsense", "'FILE' has no private key in PEM format"),
        ("certificate", BROKEN % (2 * (b"CERTIFICATE",)), "the certificate in 'FILE' can't be read: "),
        (
            "key",
            BROKEN % (2 * (b"PRIVATE KEY",)),
            "the private key in 'FILE' can't be read, or its password is wrong: ",
        ),
        ("key", None, "the key in 'FILE' is not that of the certificate in '"),
        ("ca", b"nonsense", "'FILE' has no valid certificate in PEM format: "),
    ],
)
def test_a_file_that_is_wrong_is_named(arm, files, name, content, message):
    path = getattr(files, name)
    path.write_bytes(files.issue().private_key_pem.bytes() if content is None else content)
    status, output = fails(arm, "applications:app", *files.options(), "--ssl-ca-certs", str(files.ca))
    assert status == 3
    assert f"ERROR:    TLS can't be set up: {message.replace('FILE', str(path))}" in output
    assert "Traceback" not in output


def test_ciphers(arm, files):
    context = files.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(
        arm, "applications:app", *files.options(), "--ssl-ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"
    ) as program:
        with context.wrap_socket(program.connect(), server_hostname="localhost") as sock:
            assert sock.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            program.get("/", context=context)
    status, output = fails(arm, "applications:app", *files.options(), "--ssl-ciphers", "nonsense")
    assert status == 3
    assert "TLS can't be set up" in output


async def app(scope, receive, send):
    raise AssertionError("nobody calls it")


def test_a_factory_of_contexts(files):
    """It is asked for each reload, and what it returns is used."""
    made, names = [], []

    def factory(config, default):
        context = default()
        context.sni_callback = lambda connection, name, context: names.append((name, context))
        made.append(context)
        return context

    config = Config(
        app, log_config=None, ssl_certfile=files.certificate, ssl_keyfile=files.key, ssl_context_factory=factory
    )
    config.load()
    assert config.ssl is made[0]
    config.reloadable_ssl.reload_if_changed()
    files.renew()
    config.reloadable_ssl.reload_if_changed()
    assert len(made) == 1, "the files may not be complete yet"
    config.reloadable_ssl.reload_if_changed()
    config.reloadable_ssl.reload_if_changed()
    assert len(made) == 2
    serial = handshake(config.reloadable_ssl, files.client_context())
    assert serial == f"{int(load(files.certificate).serial_number):X}"
    assert names == [("localhost", made[1])]


def load(path):
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes())


def handshake(server_context, client_context):
    """Return the serial number of the certificate that a client is shown."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    waiting = [client, server]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    return client.getpeercert()["serialNumber"].lstrip("0")


def config_of(files, app=app, **options):
    options = {"ssl_certfile": files.certificate, "ssl_keyfile": files.key, "log_config": None, **options}
    return Config(app, **options)


@contextlib.asynccontextmanager
async def running(config):
    """Serve in this loop; yield a function that connects and asks.

    It returns ALPN's choice and the answer, or None if the client is refused.
    """
    server = Server(config)
    task = asyncio.ensure_future(server.serve())
    await support.until(lambda: server.started or task.done())

    async def ask(context):
        address = server.servers[0].sockets[0].getsockname()
        try:
            reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="localhost")
        except OSError:
            return None
        try:
            writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            return (writer.get_extra_info("ssl_object").selected_alpn_protocol(), answer[:12]) if answer else None
        except OSError:
            return None
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    try:
        yield ask
    finally:
        server.should_exit = True
        await task


async def hello(scope, receive, send):
    await answer(send, b"hello")


def test_a_server_that_has_ended_does_not_wait_for_the_garbage_collector(loop, files):
    config = config_of(files, hello, port=0, lifespan="off", install_signal_handlers=False)

    async def serve():
        server = Server(config)
        task = asyncio.ensure_future(server.serve())
        await support.until(lambda: server.started or task.done())
        server.should_exit = True
        await task
        return weakref.ref(server)

    async def test():
        ended = await serve()
        # The task that watches the files is cancelled, and has yet to end.
        await support.until(lambda: len(asyncio.all_tasks()) == 1)
        await asyncio.sleep(0)
        assert ended() is None

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        loop.run_until_complete(test())
    finally:
        if was_enabled:
            gc.enable()


@both_backends
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("factory", [None, lambda config, default: default()])
def test_a_reload_keeps_what_the_program_has_changed(loop, files, late, factory):
    """Otherwise clients without a certificate, for example, would be served from then on."""
    config = config_of(files, hello, port=0, lifespan="off", install_signal_handlers=False, ssl_context_factory=factory)
    config.load()
    stranger, known, old = (files.client_context() for _ in range(3))
    stranger.set_alpn_protocols(["h2", "http/1.1"])
    known.set_alpn_protocols(["h2", "http/1.1"])
    for context in (known, old):
        files.issue("client").configure_cert(context)
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    def change():
        config.ssl.load_verify_locations(files.ca)
        config.ssl.verify_mode = ssl.CERT_REQUIRED
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_3
        # No getter has it.
        config.ssl.set_alpn_protocols(["http/1.1"])

    async def main():
        async with running(config) as ask:
            if late:
                assert config.reloadable_ssl.reload()
                assert await ask(old) == (None, b"HTTP/1.1 200")
                change()
            for count in range(3):
                assert await ask(stranger) is None, count
                assert await ask(old) is None, count
                assert await ask(known) == ("http/1.1", b"HTTP/1.1 200"), count
                files.renew()
                assert config.reloadable_ssl.reload()
            # The files that the program has named are read again.
            trustme.CA().cert_pem.write_to_path(str(files.ca))
            assert config.reloadable_ssl.reload()
            assert await ask(known) is None

    if not late:
        change()
    loop.run_until_complete(main())


def test_a_change_that_cannot_be_made_again_leaves_the_old_context(files):
    config = config_of(files)
    config.load()
    config.ssl.load_verify_locations(files.ca)
    config.ssl.verify_mode = ssl.CERT_REQUIRED
    files.ca.unlink()
    assert not config.reloadable_ssl.reload()
    assert config.reloadable_ssl.context is config.ssl
    files.authority.cert_pem.write_to_path(str(files.ca))
    assert config.reloadable_ssl.reload()
    assert config.reloadable_ssl.context is not config.ssl
    assert config.reloadable_ssl.context.verify_mode is ssl.CERT_REQUIRED


def test_a_factory_that_returns_the_same_context_each_time(files):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    config = config_of(files, ssl_context_factory=lambda config, default: context)
    config.load()
    config.ssl.verify_mode = ssl.CERT_REQUIRED
    for _ in range(2):
        assert config.reloadable_ssl.reload()
        assert config.reloadable_ssl.context is config.ssl is context
        assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_factory_of_contexts_of_a_class_of_their_own(files):
    class Context(ssl.SSLContext):
        """truststore's looks like this."""

        __slots__ = ("slot",)

        @property
        def __class__(self):
            return ssl.SSLContext

    made = []

    def factory(config, default):
        made.append(Context(ssl.PROTOCOL_TLS_SERVER))
        return made[-1]

    config = config_of(files, ssl_context_factory=factory)
    config.load()
    assert config.ssl is made[0]
    config.ssl.verify_mode = ssl.CERT_REQUIRED
    config.ssl.slot = "also repeated"
    assert config.reloadable_ssl.reload()
    assert config.reloadable_ssl.context is made[1]
    assert made[1].verify_mode is ssl.CERT_REQUIRED
    assert made[1].slot == "also repeated"


@both_backends
def test_a_connection_shows_the_context_that_it_uses(loop, files):
    config = config_of(files)
    config.load()
    shown = []

    class Shown(asyncio.Protocol):
        def connection_made(self, transport):
            shown.append(transport.get_extra_info("sslcontext"))
            assert transport.get_extra_info("ssl_object").context is shown[-1]
            transport.close()

    async def main():
        async with await loop.create_server(Shown, support.HOST, 0, ssl=config.reloadable_ssl) as server:
            for count in (1, 2):
                reader, writer = await asyncio.open_connection(
                    *server.sockets[0].getsockname(), ssl=files.client_context(), server_hostname="localhost"
                )
                assert await reader.read() == b""
                writer.close()
                await writer.wait_closed()
                assert len(shown) == count
                assert shown[-1] is config.reloadable_ssl.context
                assert isinstance(shown[-1], ssl.SSLContext)
                config.reloadable_ssl.reload()

    loop.run_until_complete(main())
    assert shown[0] is config.ssl
    assert shown[1] is not config.ssl


def test_a_factory_that_returns_something_else(files):
    config = Config(app, log_config=None, ssl_context_factory=lambda config, default: None)
    with pytest.raises(TypeError, match=r"`ssl_context_factory` must return an `ssl.SSLContext`, got NoneType"):
        config.load()
    config = Config(app, log_config=None, ssl_context_factory=lambda config, default: default())
    with pytest.raises(StartupError, match=r"ssl_certfile \(--ssl-certfile\) is missing"):
        config.load()
    with pytest.raises(StartupError, match=r"ssl_certfile \(--ssl-certfile\) is missing"):
        Config(app, log_config=None, ssl_keyfile=files.key).load()


def test_a_plain_client_of_a_unix_socket_with_tls(arm, files, tmp_path):
    path = tmp_path / "socket"
    with serving(arm, "applications:app", *files.options(), "--uds", str(path)) as program:
        assert program.get("/", context=files.client_context())[0] == 200
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(support.PATIENCE_S)
            sock.connect(str(path))
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert not sock.recv(65536).startswith(b"HTTP/1.1 200")


@both_backends
@pytest.mark.parametrize("sent", [None, b"", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_clients_that_do_not_close_do_not_delay_the_end(arm, files, sent):
    """Neither before nor after the handshake, nor after a request."""
    options = ("--timeout-graceful-shutdown", "1000", "--timeout-keep-alive", "1000", "--ssl-shutdown-timeout", "1000")
    with serving(arm, "applications:app", *files.options(), *options) as program, contextlib.ExitStack() as stack:
        sock = stack.enter_context(program.connect())
        if sent is not None:
            sock = files.client_context().wrap_socket(sock, server_hostname="localhost")
            stack.enter_context(sock)
            sock.sendall(sent)
            if sent:
                assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        assert program.stop() == -signal.SIGTERM
        assert "shutdown" in program.output.splitlines()


@both_backends
def test_a_handshake_that_has_begun_goes_on_though_the_server_ends(arm, files):
    with serving(arm, "applications:app", *files.options(), "--timeout-graceful-shutdown", "1000") as program:
        arrived, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = files.client_context().wrap_bio(arrived, sent, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        with program.connect() as sock:
            sock.sendall(sent.read())
            arrived.write(sock.recv(65536))
            program.send(signal.SIGTERM)
            program.wait_for("Shutting down")
            client.do_handshake()
            client.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            sock.sendall(sent.read())
            answer = b""
            while not answer:
                record = sock.recv(65536)
                assert record, "the server has closed the connection"
                arrived.write(record)
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer = client.read(65536)
            assert answer.startswith(b"HTTP/1.1 200")
        assert program.wait() == -signal.SIGTERM


@both_backends
def test_a_response_that_is_read_late_arrives_though_the_server_ends(arm, files):
    """The server waits as long as its client has not taken all."""
    options = ("--timeout-graceful-shutdown", "1000")
    with serving(arm, "applications:app", *files.options(), *options) as program:
        context = files.client_context()
        with context.wrap_socket(program.connect(), server_hostname="localhost") as sock:
            sock.sendall(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n")
            program.wait_for("sending")
            program.send(signal.SIGTERM)
            program.wait_for("Waiting for connections to close")
            # Longer than the time that an idle connection has, or one that is read to its end (two seconds).
            time.sleep(3)
            # Not bytes, which would be copied each time: the server doesn't wait for a slow client without end.
            received = bytearray()
            while data := sock.recv(1 << 20):
                received += data
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert body == LARGE * b"x"
        assert program.wait() == -signal.SIGTERM


@both_backends
def test_a_handshake_has_a_time_limit(arm, files):
    with serving(arm, "applications:app", *files.options(), "--ssl-handshake-timeout", "0.2") as program:
        with program.connect() as sock:
            assert sock.recv(1) == b""
        assert program.get("/", context=files.client_context())[0] == 200
