"""WSGI frameworks served by `ringloop serve`, as a process; the control is gunicorn, which must give the same answers."""

import contextlib
import hashlib
import json
import sys
import textwrap

import pytest

import processes
import support
from test_serve_frameworks import Served

pytest.importorskip("click", reason="make test-applications installs it")
pytest.importorskip("gunicorn", reason="make test-applications installs it")

LARGE = 300_000


@contextlib.contextmanager
def serving(arm, folder, source):
    """Serve `app` of this source."""
    (folder / "served.py").write_text(textwrap.dedent(source))
    port = support.free_port()
    if arm == "asyncio":
        place = ["--bind", f"{support.HOST}:{port}", "--chdir", str(folder), "--threads", "4"]
        command = [sys.executable, "-m", "gunicorn", "served:app", *place]
    else:
        place = ["--host", support.HOST, "--port", str(port), "--app-dir", str(folder)]
        command = [sys.executable, "-m", "ringloop", "serve", "served:app", *place]
    environment = {"PYTHONASYNCIODEBUG": "", "PYTHONDEVMODE": "", "HOME": str(folder)}
    with processes.running(command, folder / "log", arm=arm, cwd=folder, environment=environment) as program:
        program.wait_for_port(port)
        try:
            yield Served(program, port)
        except BaseException:
            print(program.output())
            raise
        program.stop()
    assert "Traceback" not in program.output(), program.output()


def check(served):
    """Ask for the same things of each framework."""
    assert served.ask("/hello/me?greeting=good%20day") == (200, b"good day me")
    assert served.ask("/hello/%C3%A9?greeting=hi") == (200, "hi é".encode())
    assert served.ask_json("/json", "POST", {"name": "é"}) == (200, {"name": "é"})
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert served.ask("/form", "POST", b"a=1&b=%C3%A9", form) == (200, "a=1 b=é".encode())
    lines = (b"--x", b'Content-Disposition: form-data; name="file"; filename="f"', b"", b"y" * LARGE, b"--x--", b"")
    multipart = {"content-type": "multipart/form-data; boundary=x"}
    digest = hashlib.sha256(b"y" * LARGE).hexdigest().encode()
    assert served.ask("/upload", "POST", b"\r\n".join(lines), multipart) == (200, digest)
    assert served.ask("/stream") == (200, b"0 1 2 ")
    assert served.ask("/file") == (200, bytes(range(256)) * 1000)
    assert served.ask("/nothing")[0] == 404
    assert served.ask("/empty") == (204, b"")
    assert served.ask("/hello/me?greeting=x", "HEAD") == (200, b"")


def test_flask(arm, tmp_path):
    pytest.importorskip("flask", reason="make test-applications installs it where it can be installed")
    source = """
        import hashlib
        import pathlib

        from flask import Flask, Response, request, send_file, stream_with_context

        app = Flask(__name__)
        path = pathlib.Path("file.bin").absolute()
        path.write_bytes(bytes(range(256)) * 1000)


        @app.get("/hello/<name>")
        def hello(name):
            return f"{request.args['greeting']} {name}"


        @app.post("/json")
        def json():
            return request.get_json()


        @app.post("/form")
        def form():
            return f"a={request.form['a']} b={request.form['b']}"


        @app.post("/upload")
        def upload():
            return hashlib.sha256(request.files["file"].read()).hexdigest()


        @app.get("/stream")
        def stream():
            return Response(stream_with_context(f"{number} " for number in range(3)))


        @app.get("/file")
        def file():
            return send_file(path)


        @app.get("/empty")
        def empty():
            return "", 204


        @app.get("/environ")
        def environ():
            return {"url": request.url, "client": request.remote_addr}
        """
    with serving(arm, tmp_path, source) as served:
        check(served)
        assert served.ask("/file", headers={"range": "bytes=255-257"}) == (206, b"\xff\x00\x01")
        status, body = served.ask("/environ?x=1", headers={"host": "example.org"})
        assert (status, json.loads(body)) == (200, {"url": "http://example.org/environ?x=1", "client": "127.0.0.1"})


def test_django(arm, tmp_path):
    pytest.importorskip("django", reason="make test-applications installs it where it can be installed")
    source = """
        import hashlib
        import json as json_module
        import pathlib
        import threading

        from django.conf import settings
        from django.core.wsgi import get_wsgi_application
        from django.db import connection
        from django.http import FileResponse, HttpResponse, JsonResponse, StreamingHttpResponse
        from django.urls import path

        file_path = pathlib.Path("file.bin").absolute()
        file_path.write_bytes(bytes(range(256)) * 1000)
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(pathlib.Path("db.sqlite").absolute())}
        settings.configure(
            ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x", DATABASES={"default": database},
            USE_TZ=True,
        )


        def hello(request, name):
            return HttpResponse(f"{request.GET['greeting']} {name}")


        def json(request):
            return JsonResponse(json_module.loads(request.body))


        def form(request):
            return HttpResponse(f"a={request.POST['a']} b={request.POST['b']}")


        def upload(request):
            digest = hashlib.sha256()
            for part in request.FILES["file"].chunks():
                digest.update(part)
            return HttpResponse(digest.hexdigest())


        def stream(request):
            return StreamingHttpResponse(f"{number} " for number in range(3))


        def file(request):
            return FileResponse(file_path.open("rb"))


        def query(request):
            # Connections belong to threads: one of another thread would raise an error.
            with connection.cursor() as cursor:
                cursor.execute("select 41 + 1")
                return HttpResponse(str(cursor.fetchone()[0]))


        urlpatterns = [
            path("hello/<str:name>", hello),
            path("json", json),
            path("form", form),
            path("upload", upload),
            path("stream", stream),
            path("file", file),
            path("empty", lambda request: HttpResponse(status=204)),
            path("query", query),
        ]
        app = get_wsgi_application()
        """
    with serving(arm, tmp_path, source) as served:
        check(served)
        for _ in range(20):
            assert served.ask("/query") == (200, b"42")
