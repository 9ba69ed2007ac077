"""`ringloop serve --watchdog`: what holds the loop is logged, with the request. A request holds it until that is so."""

import re

import pytest

from serve_process import fails, serving
from test_http_metrics import scrape

pytestmark = pytest.mark.ringloop_only

APPLICATION = """
import asyncio
import logging
import threading

import ringloop

seen = threading.Event()


class Handler(logging.Handler):
    def emit(self, record):
        if "in hold\\n" in record.getMessage():
            seen.set()


logging.getLogger("uvicorn.error").addHandler(Handler())


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    if scope["path"].startswith("/hold"):
        await hold(scope)
    elif scope["path"].startswith("/task"):
        # As frameworks do, whose middleware runs the rest in a task.
        await asyncio.create_task(hold(scope), name="of a framework")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


async def hold(scope):
    assert seen.wait(100)


async def watching(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        loop = asyncio.get_running_loop()
        scope["state"]["watchdog"] = ringloop.watch(loop)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "held.py").write_text(APPLICATION)
    return tmp_path


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
@pytest.mark.parametrize(
    ("path", "task"), [("/hold/a%0Ab", r"Task-\d+"), ("/task/%F0%9F%98%80", "of a framework")], ids=["hold", "task"]
)
def test_what_holds_the_loop_is_logged_with_its_request(arm, folder, path, task, workers):
    with serving(arm, "held:app", "--watchdog", "20", *workers, cwd=folder) as program:
        assert program.get(f"{path}?secret=1")[0] == 200
        report = program.wait_for(rf"WARNING:.*The task '({task})', in the request GET (\S+), has held the event loop")
        assert report[2] == path
        program.wait_for(r"in hold\n.*seen\.wait")
        assert program.stop() in (0, -15)
    assert "secret" not in re.sub(r".*HTTP/1.1.*", "", program.output)


def test_it_is_counted(arm, folder):
    pytest.importorskip("prometheus_client")
    with serving(arm, "held:app", "--watchdog", "20", "--metrics", "/metrics", cwd=folder) as program:
        assert program.get("/hold")[0] == 200
        assert sum(value for (name, *_), value in scrape(program).items() if name == "ringloop_loop_stalls_total") >= 1


@pytest.mark.any_backend
def test_nobody_else_may_watch_the_loop(arm, folder):
    status, output = fails(arm, "held:watching", "--watchdog", "20", cwd=folder)
    assert status == 3
    assert "The option watchdog can't be used: this loop is watched already" in output


@pytest.mark.any_backend
@pytest.mark.parametrize("value", ["0", "soon", "-5"])
def test_a_threshold_is_a_number_of_milliseconds(arm, value):
    status, output = fails(arm, "applications:app", "--watchdog", value)
    assert status == 2
    assert "--watchdog" in output
