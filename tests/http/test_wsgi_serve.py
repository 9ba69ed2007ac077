"""`ringloop serve` with WSGI applications."""

import json
import re
import signal
import time

import pytest

import support
from serve_process import begin, fails, serving
from test_tls_serving import Files

# The server is a process of its own, and above the loop.
pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("app", b"wsgi /x"),
        ("instance", b"wsgi /x"),
        ("method", b"wsgi /x"),
        ("wrapped", b"wsgi /x"),
        ("with_default", b"wsgi /x"),
        ("Application", b"of a class"),
    ],
)
def test_wsgi_is_recognised(arm, name, body):
    with serving(arm, f"wsgi_applications:{name}") as program:
        assert program.get("/x")[2] == body
        # There are no WebSockets, so a request for one is a plain request.
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        assert program.get("/x", upgrade)[2] == body


@pytest.mark.parametrize("name", ["anything", "of_four"])
def test_what_could_be_several_interfaces_is_asked_for(arm, name):
    status, output = fails(arm, f"wsgi_applications:{name}")
    assert status == 3
    assert "set --interface to asgi3, asgi2 or wsgi" in output
    assert "Traceback" not in output


def test_an_interface_that_is_given_is_not_questioned(arm):
    with serving(arm, "wsgi_applications:anything", "--interface", "wsgi") as program:
        assert program.get("/x")[2] == b"wsgi /x"


def test_there_is_no_lifespan(arm):
    status, output = fails(arm, "wsgi_applications:app", "--lifespan", "on")
    assert status == 3
    assert "--lifespan on needs an ASGI application" in output


def test_environment(arm):
    arguments = ("--root-path", "/root", "--wsgi-threads", "1", "--workers", "2")
    with serving(arm, "wsgi_applications:app", *arguments) as program:
        environ = program.get_json("/environ?a=b", headers={"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "https"})
    assert (environ["SCRIPT_NAME"], environ["PATH_INFO"], environ["QUERY_STRING"]) == ("/root", "/environ", "a=b")
    assert (environ["wsgi.multithread"], environ["wsgi.multiprocess"]) == (False, True)
    assert (environ["REMOTE_ADDR"], environ["wsgi.url_scheme"]) == ("1.2.3.4", "https")
    assert "1.2.3.4:0 - " in program.output


def test_unix_socket(arm, tmp_path):
    with serving(arm, "wsgi_applications:app", "--uds", str(tmp_path / "socket")) as program:
        environ = program.get_json("/environ")
    assert (environ["REMOTE_ADDR"], environ["SERVER_NAME"], environ["SERVER_PORT"]) == ("", "localhost", "80")
    assert "REMOTE_PORT" not in environ


def test_tls(arm, tmp_path):
    files = Files(tmp_path)
    with serving(arm, "wsgi_applications:app", *files.options()) as program:
        _, _, body = program.get("/environ", context=files.client_context())
    assert json.loads(body)["wsgi.url_scheme"] == "https"


def test_errors_are_logged(arm):
    with serving(arm, "wsgi_applications:app") as program:
        assert program.get("/fail")[0] == 500
        program.wait_for("ValueError: of the application")
        assert program.get("/log")[0] == 200
        program.wait_for("into the log")
        program.wait_for(r'"GET /fail HTTP/1.1" 500')
        assert "Exception in WSGI application" in program.output


def test_metrics(arm):
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")
    with serving(arm, "wsgi_applications:app", "--metrics", "/metrics") as program:
        assert program.get("/x")[2] == b"wsgi /x"
        status, headers, body = program.get("/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        assert re.search(rb'ringloop_http_requests_total\{method="GET",status="200"\} [1-9]', body)


def test_a_view_that_runs_can_end(arm, tmp_path):
    gate = tmp_path / "gate"
    with serving(arm, "wsgi_applications:app", env={"FILE": str(gate)}) as program, begin(program, "/wait") as sock:
        program.send(signal.SIGTERM)
        program.wait_for("Waiting for connections to close")
        gate.touch()
        data = b""
        while part := sock.recv(65536):
            data += part
        assert b", done" in data
        program.wait()
        assert "ended" in program.output


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0)])
def test_a_view_that_does_not_end_is_left_behind(arm, number, status):
    arguments = ("--timeout-graceful-shutdown", "0.1")
    with serving(arm, "wsgi_applications:app", *arguments) as program, begin(program, "/stuck"):
        assert program.stop(number) == status
        assert "view(s) did not end in time" in program.output
        assert "Traceback" not in program.output


def test_workers(arm):
    with serving(arm, "wsgi_applications:app", "--workers", "2") as program:
        first = {program.get("/pid")[2] for _ in range(20)}
        program.send(signal.SIGHUP)
        deadline = time.monotonic() + support.PATIENCE_S
        while program.get_again("/pid")[2] in first:
            assert time.monotonic() < deadline
            time.sleep(0.01)
