"""Frameworks and libraries, each in its own process: the rows of "Tried and works" in docs/integrations.md.

Each program runs on the loop under test and prints its results; asyncio, the control, must give the same.
"""

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import processes
import support

ROOT = support.REPOSITORY

# The common part of the programs, as a module beside them.
COMMON = """
import asyncio
import os

import aiohttp
import uvicorn


def new_event_loop():
    if os.environ["LOOP_UNDER_TEST"] == "asyncio":
        return asyncio.new_event_loop()
    import ringloop

    return ringloop.new_event_loop()


def run(main):
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        loop = runner.get_loop()
        assert getattr(loop, "backend", "asyncio") == os.environ["LOOP_UNDER_TEST"]
        runner.run(main)


async def fetch(app, *paths):
    # Serve an ASGI application, and print what it answers.
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        assert not serving.done()
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for path in paths:
            async with session.get(path) as response:
                print(response.status, await response.text())
    server.should_exit = True
    await serving
"""


def run_program(arm, folder, program, *options):
    """Run a program on the loop under test; return what it printed, and demand that it succeeded in silence."""
    (folder / "common.py").write_text(COMMON)
    (folder / "program.py").write_text(textwrap.dedent(program))
    with processes.running(
        [sys.executable, *options, "program.py"],
        folder / "log",
        arm=arm,
        cwd=folder,
        environment={"LOOP_UNDER_TEST": arm, "PYTHONASYNCIODEBUG": "", "PYTHONDEVMODE": "", "HOME": str(folder)},
    ) as running:
        try:
            status = running.process.wait(support.PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the program does not end:\n{running.output()}")
        assert status == 0, running.output()
        return running.output()


def needs(package):
    pytest.importorskip(package, reason="make test-applications installs it")


def test_django(arm, tmp_path):
    needs("django")
    program = """
        import asyncio
        import threading

        from django.conf import settings
        from django.core.asgi import get_asgi_application
        from django.http import HttpResponse, StreamingHttpResponse
        from django.urls import path

        import common

        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="-")


        async def hello(request):
            await asyncio.sleep(0.001)
            return HttpResponse("hello")


        def in_a_thread(request):
            return HttpResponse(threading.current_thread() is not threading.main_thread())


        async def stream(request):
            async def pieces():
                for number in range(3):
                    await asyncio.sleep(0.001)
                    yield f"{number} "

            return StreamingHttpResponse(pieces())


        urlpatterns = [path("", hello), path("thread", in_a_thread), path("stream", stream)]
        common.run(common.fetch(get_asgi_application(), "/", "/thread", "/stream"))
        """
    assert run_program(arm, tmp_path, program) == "200 hello\n200 True\n200 0 1 2 \n"


def test_quart(arm, tmp_path):
    needs("quart")
    program = """
        import asyncio

        import aiohttp
        from quart import Quart, websocket

        import common

        app = Quart(__name__)


        @app.get("/")
        async def hello():
            return "hello"


        @app.get("/thread")
        def in_a_thread():
            return "from a thread"


        @app.get("/stream")
        async def stream():
            async def pieces():
                for number in range(3):
                    await asyncio.sleep(0.001)
                    yield f"{number} "

            return pieces()


        common.run(common.fetch(app, "/", "/thread", "/stream"))
        """
    assert run_program(arm, tmp_path, program) == "200 hello\n200 from a thread\n200 0 1 2 \n"


def test_tornado(arm, tmp_path):
    needs("tornado")
    program = """
        import asyncio

        from tornado import gen, httpserver, ioloop, netutil, web, websocket
        from tornado.httpclient import AsyncHTTPClient

        import common


        class Hello(web.RequestHandler):
            async def get(self):
                await gen.sleep(0.001)
                self.write("hello")


        class Echo(websocket.WebSocketHandler):
            async def on_message(self, message):
                await self.write_message(message)


        async def main():
            assert ioloop.IOLoop.current().asyncio_loop is asyncio.get_running_loop()
            sockets = netutil.bind_sockets(0, "127.0.0.1")
            port = sockets[0].getsockname()[1]
            server = httpserver.HTTPServer(web.Application([("/", Hello), ("/echo", Echo)]))
            server.add_sockets(sockets)
            answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/")
            print(answer.code, answer.body.decode())
            connection = await websocket.websocket_connect(f"ws://127.0.0.1:{port}/echo")
            for length in (1, 200_000):
                await connection.write_message(b"x" * length, binary=True)
                print(len(await connection.read_message()))
            connection.close()
            print(await connection.read_message())
            ticks = []
            periodic = ioloop.PeriodicCallback(lambda: ticks.append(1), 1)
            periodic.start()
            while len(ticks) < 3:
                await asyncio.sleep(0.001)
            periodic.stop()
            server.stop()
            await server.close_all_connections()


        common.run(main())
        """
    assert run_program(arm, tmp_path, program) == "200 hello\n1\n200000\nNone\n"


def test_dask(arm, tmp_path):
    needs("distributed")
    program = """
        import dask

        dask.config.set({"distributed.worker.daemon": False, "distributed.admin.system-monitor.interval": "10s"})
        from distributed import Client, LocalCluster

        import common


        async def main():
            options = dict(asynchronous=True, processes=False, dashboard_address=None, n_workers=2, threads_per_worker=1)
            async with LocalCluster(protocol="tcp", host="127.0.0.1", **options) as cluster:
                async with Client(cluster, asynchronous=True) as client:
                    print("got", sum(await client.gather(client.map(lambda number: number**2, range(100)))))
                    big = await client.scatter(bytes(1_000_000))
                    print("got", await client.submit(len, big))
                    try:
                        await client.submit(lambda: 1 / 0)
                    except ZeroDivisionError as error:
                        print("got", error)


        common.run(main())
        """
    # Its logger writes of what ends; the program alone writes lines that begin so.
    lines = [line for line in run_program(arm, tmp_path, program).splitlines() if line.startswith("got ")]
    assert lines == ["got 328350", "got 1000000", "got division by zero"]


def test_grpc(arm, tmp_path):
    needs("grpc")
    program = """
        import asyncio
        import os

        # gRPC's C core logs a call that is still open when the server stops.
        os.environ["GRPC_VERBOSITY"] = "ERROR"
        import grpc
        import grpc.aio

        import common


        async def double(request, context):
            return request * 2


        async def count(request, context):
            for number in range(3):
                await asyncio.sleep(0.001)
                yield request + str(number).encode()


        async def refuse(request, context):
            await context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")


        async def main():
            server = grpc.aio.server()
            handlers = {
                "Double": grpc.unary_unary_rpc_method_handler(double),
                "Count": grpc.unary_stream_rpc_method_handler(count),
                "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
            }
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Service", handlers)])
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                unary = channel.unary_unary("/test.Service/Double")
                answers = await asyncio.gather(*(unary(b"x" * number) for number in range(200)))
                print(sum(map(len, answers)))
                print([piece async for piece in channel.unary_stream("/test.Service/Count")(b"n")])
                try:
                    await channel.unary_unary("/test.Service/Refuse")(b"")
                except grpc.aio.AioRpcError as error:
                    print(error.code(), error.details())
            await server.stop(None)


        common.run(main())
        """
    output = run_program(arm, tmp_path, program)
    assert output == "39800\n[b'n0', b'n1', b'n2']\nStatusCode.NOT_FOUND nothing here\n"


def test_twisted(arm, tmp_path):
    needs("twisted")
    program = """
        import asyncio
        import sys

        from twisted.internet import asyncioreactor

        import common

        asyncioreactor.install(common.new_event_loop())

        from twisted.internet import defer, endpoints, protocol, reactor, task, threads, utils


        class Echo(protocol.Protocol):
            def dataReceived(self, data):
                self.transport.write(data)


        class Client(protocol.Protocol):
            def __init__(self):
                self.received = 0
                self.done = defer.Deferred()

            def connectionMade(self):
                self.transport.write(bytes(1_000_000))

            def dataReceived(self, data):
                self.received += len(data)
                if self.received == 1_000_000:
                    self.transport.loseConnection()

            def connectionLost(self, reason):
                self.done.callback(self.received)


        async def main(reactor):
            listening = await endpoints.TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(
                protocol.Factory.forProtocol(Echo)
            )
            there = endpoints.TCP4ClientEndpoint(reactor, "127.0.0.1", listening.getHost().port)
            client = await endpoints.connectProtocol(there, Client())
            print(await client.done)
            print(await threads.deferToThread(lambda: "from a thread"))
            print((await utils.getProcessOutput(sys.executable, ["-c", "print('from a child')"])).decode(), end="")
            await task.deferLater(reactor, 0.001)
            print(await defer.Deferred.fromFuture(asyncio.ensure_future(asyncio.sleep(0.001, "from asyncio"))))
            await listening.stopListening()


        task.react(lambda reactor: defer.ensureDeferred(main(reactor)))
        """
    assert run_program(arm, tmp_path, program) == "1000000\nfrom a thread\nfrom a child\nfrom asyncio\n"


def test_textual(arm, tmp_path):
    needs("textual")
    program = """
        import asyncio

        from textual.app import App
        from textual.widgets import Input, Label

        import common


        class Form(App):
            def compose(self):
                yield Input()
                yield Label("nothing yet", id="said")

            def on_mount(self):
                self.ticks = 0
                self.set_interval(0.005, self.tick)

            def tick(self):
                self.ticks += 1

            def on_input_submitted(self, event):
                self.run_worker(self.answer(event.value))

            async def answer(self, text):
                await asyncio.sleep(0.001)
                self.exit(text.upper())


        async def type_in(pilot):
            while pilot.app.ticks < 3:
                await pilot.pause(0.005)
            await pilot.press("h", "e", "l", "l", "o", "enter")


        app = Form()
        app.run(headless=True, size=(80, 24), auto_pilot=type_in, loop=common.new_event_loop())
        print(app.return_value)
        """
    assert run_program(arm, tmp_path, program).splitlines()[-1] == "HELLO"


def test_asyncssh(arm, tmp_path):
    needs("asyncssh")
    program = """
        import asyncio
        import os

        import asyncssh

        import common


        class Server(asyncssh.SSHServer):
            def begin_auth(self, username):
                return False


        async def handle(process):
            if process.command == "cat":
                process.stdout.write(await process.stdin.read())
            else:
                await process.redirect(await asyncio.create_subprocess_shell(
                    process.command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                ))
                await process.stdout.drain()
            process.exit(3)


        async def main():
            key = asyncssh.generate_private_key("ssh-ed25519")
            server = await asyncssh.listen(
                "127.0.0.1", 0, server_host_keys=[key], server_factory=Server, process_factory=handle, sftp_factory=True
            )
            options = dict(known_hosts=None, username="user", config=None, client_keys=None, agent_path=None)
            async with asyncssh.connect("127.0.0.1", server.get_port(), **options) as connection:
                ended = await connection.run("cat", input="x" * 300_000)
                print(len(ended.stdout), ended.exit_status)
                async with connection.start_sftp_client() as sftp:
                    data = os.urandom(500_000)
                    async with sftp.open(os.path.abspath("copied"), "wb") as file:
                        await file.write(data)
                    async with sftp.open(os.path.abspath("copied"), "rb") as file:
                        print(await file.read() == data)
            server.close()
            await server.wait_closed()


        common.run(main())
        """
    assert run_program(arm, tmp_path, program) == "300000 3\nTrue\n"


def test_cprofile(arm, tmp_path):
    program = """
        import asyncio

        import common


        async def work():
            for _ in range(100):
                await asyncio.sleep(0)


        common.run(work())
        """
    output = run_program(arm, tmp_path, program, "-m", "cProfile", "-s", "tottime")
    assert re.search(r"^ *(101|\d+/1) .*program\.py:\d+\(work\)$", output, re.MULTILINE), output


def test_py_spy(arm, tmp_path):
    spy = Path(sys.executable).with_name("py-spy")
    if not spy.exists():
        pytest.skip("make test-applications installs it")
    (tmp_path / "common.py").write_text(COMMON)
    program = """
        import time

        import common


        async def busy():
            print("begun", flush=True)
            while True:
                time.sleep(0.01)


        common.run(busy())
        """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    environment = {"LOOP_UNDER_TEST": arm}
    command = [sys.executable, "program.py"]
    with processes.running(command, tmp_path / "log", arm=arm, cwd=tmp_path, environment=environment) as running:
        running.wait_for_output("begun")
        seen = subprocess.run(
            [spy, "dump", "--pid", str(running.process.pid)], capture_output=True, text=True, timeout=support.PATIENCE_S
        )
        if "Permission" in seen.stderr:
            pytest.skip("py-spy may not look into other processes here (ptrace)")
        assert seen.returncode == 0, seen.stderr
        assert "busy (" in seen.stdout, seen.stdout
        running.process.kill()


def test_the_table_names_tested_versions():
    """Each row names the version that pyproject.toml pins, and a test that exists."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    pins = dict(pin.split("==") for pin in groups["applications"])
    section = (ROOT / "docs" / "integrations.md").read_text().split("## Tried and works\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert len(rows) > 12
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for _, versions, _, checked in rows[2:]:
        for package, version in re.findall(r"`([a-z_-]+) ([\w.]+)`", versions):
            assert pins[package] == version
        for name in re.findall(r"`(test_\w+)`", checked):
            assert f"def {name}(" in tests or (Path(__file__).parent / f"{name}.py").exists(), name
