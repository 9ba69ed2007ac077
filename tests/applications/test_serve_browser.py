"""A browser that loads a page, a WebSocket and an event stream from `ringloop serve`, over TLS."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import processes
import support

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# fmt: off
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--ignore-certificate-errors", "--remote-debugging-port=0",
)
# fmt: on
TRIES = 3

APPLICATION = '''
import asyncio
import json
import os

PAGE = """<!doctype html>
<link rel="icon" href="data:,">
<script type="module">
const found = {};

async function load(name, work) {
  try { found[name] = await work(); } catch (error) { found[name] = String(error); }
}

const messages = (source, count) => new Promise((resolve, reject) => {
  const got = [];
  source.onerror = () => reject("failed after " + got);
  source.onmessage = (event) => { if (got.push(event.data) == count) { source.close(); resolve(got); } };
});

await Promise.all([
  load("pieces", async () => (await (await fetch("/pieces")).text()).length),
  load("upload", async () => (await fetch("/upload", {method: "POST", body: "x".repeat(300000)})).text()),
  load("many", async () => {
    const answers = await Promise.all([...Array(50)].map(async (_, number) => (await fetch("/number/" + number)).text()));
    return answers.every((answer, number) => answer == "/number/" + number);
  }),
  load("events", () => messages(new EventSource("/events"), 3)),
  load("websocket", async () => {
    const socket = new WebSocket("wss://" + location.host + "/echo", ["mine"]);
    const answers = messages(socket, 3);
    socket.onopen = () => { for (const text of ["one", "two", "long ".repeat(20000)]) socket.send(text); };
    const lengths = (await answers).map((answer) => answer.length);
    return [socket.protocol, ...lengths, socket.extensions];
  }),
]);
found.protocols = [...new Set(performance.getEntries().map((entry) => entry.nextHopProtocol).filter(Boolean))];
await fetch("/found", {method: "POST", body: JSON.stringify(found)});
</script>"""


async def respond(send, body, kind=b"text/plain"):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


async def app(scope, receive, send):
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "mine"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    path = scope["path"]
    if path == "/":
        await respond(send, PAGE.encode(), b"text/html; charset=utf-8")
    elif path == "/found":
        await respond(send, b"")
        os.write(1, b"found " + body + b" end\\n")
    elif path == "/upload":
        await respond(send, str(len(body)).encode())
    elif path in ("/pieces", "/events"):
        kind = b"text/event-stream" if path == "/events" else b"text/plain"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for number in range(3):
            await asyncio.sleep(0.01)
            piece = f"data: {number}\\n\\n".encode() if path == "/events" else bytes(100_000)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})
    else:
        await respond(send, path.encode())
'''


@contextlib.contextmanager
def browser(url, folder):
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium is installed here: apt-get install chromium")
    # Its processes are many: they are ended as a group.
    with subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={folder}", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def find(server, url, folder):
    """Return what the page found. A browser that falls over says nothing of the server."""
    for number in range(TRIES):
        with browser(url, folder / f"profile-{number}") as process, contextlib.suppress(pytest.fail.Exception):
            processes.wait_until(lambda: re.search("found .* end", server.output()), process, server.log)
        if match := re.search("found (.*) end", server.output()):
            return json.loads(match[1])
    pytest.fail(f"the page found nothing:\n{server.output()}")


@pytest.mark.ringloop_only
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("options", "protocol"), [((), "h2"), (("--no-http2",), "http/1.1")])
def test_a_browser(arm, tmp_path, certificate, options, protocol):
    pytest.importorskip("click", reason="make test-applications installs it")
    (tmp_path / "served.py").write_text(APPLICATION)
    port = support.free_port()
    # fmt: off
    command = [
        sys.executable, "-m", "ringloop", "serve", "served:app", "--port", str(port), "--lifespan", "off",
        "--ssl-certfile", str(certificate.certificate), "--ssl-keyfile", str(certificate.key), *options,
    ]
    # fmt: on
    with processes.running(command, tmp_path / "log", arm=arm, cwd=tmp_path) as server:
        server.wait_for_port(port)
        found = find(server, f"https://{support.HOST}:{port}/", tmp_path)
        assert "Traceback" not in server.output(), server.output()
    extensions = found["websocket"].pop()
    assert extensions.startswith("permessage-deflate")
    assert found == {
        "pieces": 300_000,
        "upload": "300000",
        "many": True,
        "events": ["0", "1", "2"],
        "websocket": ["mine", 3, 3, 100_000],
        "protocols": [protocol],
    }
