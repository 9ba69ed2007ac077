"""Send the requests of the HTTP crate's table through haproxy and Varnish to `ringloop serve`, and look for smuggled ones.

The proxy stamps each request that it forwards with a number of its own, and with the method and the target that it
means. It uses connections to the server again, for other clients. So the application must see no request without a
stamp, none with a stamp that it has seen before, and none with another method or target than the stamp's. After each
row of the table another client asks through the proxy, and must get the answer to its own request.

Needs haproxy and Varnish (Debian's packages). Exits with 0 if nothing was smuggled, with 1 if something was, with 2 if
it can't be run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from server_process import BACKENDS, HOST, PATIENCE_S, free_port, running, serve

TABLE = Path(__file__).parent.parent / "crates/ringloop-http/tests/data/requests.json"

HAPROXY = """
global
    maxconn 500
defaults
    mode http
    timeout connect 5s
    timeout client 10s
    timeout server 10s
    timeout http-request 10s
    http-reuse always
frontend clients
    bind {host}:{port}
    http-request set-header x-stamp %[uuid()]
    http-request set-header x-meant "%[method] %[url]"
    default_backend servers
backend servers
    server ringloop {host}:{server}
"""

VARNISH = """
vcl 4.1;
backend ringloop {{ .host = "{host}"; .port = "{server}"; }}
sub vcl_recv {{ return (pass); }}
sub vcl_backend_fetch {{
    set bereq.http.x-stamp = bereq.xid;
    set bereq.http.x-meant = bereq.method + " " + bereq.url;
}}
"""

stamps: set[bytes] = set()
problems: list[str] = []
count = 0


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the target, and remember what no proxy has meant."""
    global count
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    if target == b"/report" and (b"x-report", b"yes") in scope["headers"]:
        body = json.dumps({"problems": problems, "count": count}).encode()
    else:
        count += 1
        line = scope["method"].encode() + b" " + target
        stamp = [value for name, value in scope["headers"] if name == b"x-stamp"]
        meant = [value for name, value in scope["headers"] if name == b"x-meant"]
        if len(stamp) != 1 or stamp[0] in stamps:
            problems.append(f"{line!r} has the stamps {stamp}: {scope['headers']}")
        elif len(meant) != 1 or not is_same(line, meant[0]):
            problems.append(f"{line!r} was meant as {meant}")
        stamps.update(stamp)
        while (message := await receive())["type"] == "http.request" and message.get("more_body"):
            pass
        body = target
    status = 405 if scope["method"] == "CONNECT" else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def is_same(line: bytes, meant: bytes) -> bool:
    """Return whether this is the request that was meant.

    A target's scheme and host, an empty query, and that of CONNECT, are not in the scope.
    """
    method, _, target = meant.partition(b" ")
    if method == b"CONNECT":
        return line == b"CONNECT "
    if b"://" in target.partition(b"?")[0]:
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    return line == method + b" " + target.removesuffix(b"?")


def exchange(port: int, request: bytes, silence_s: float) -> bytes:
    """Return what comes until the connection ends, or nothing comes for some time."""
    data = b""
    with socket.create_connection((HOST, port), PATIENCE_S) as sock, contextlib.suppress(OSError):
        sock.sendall(request)
        sock.settimeout(silence_s)
        while part := sock.recv(65536):
            data += part
    return data


def send_row(port: int, number: int, row: dict[str, Any]) -> list[str]:
    """Send a row, and the request of another client; return what is wrong with its answer."""
    exchange(port, row["input"].encode("latin-1"), 0.5)
    target = f"/another-client/{number}"
    request = f"GET {target} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"
    answer = exchange(port, request.encode(), PATIENCE_S)
    if answer.startswith(b"HTTP/1.1 200 ") and answer.partition(b"\r\n\r\n")[2].find(target.encode()) >= 0:
        return []
    return [f"after {row['name']!r} another client gets {answer!r}"]


def run(proxy: str, backend: str, folder: Path) -> int:
    """Send all rows through a proxy; return how many problems there were."""
    port, server = free_port(), free_port()
    options = ["--lifespan", "off", "--no-access-log", "--timeout-keep-alive", "60"]
    ringloop = serve(f"{Path(__file__).stem}:app", server, backend, *options)
    settings = folder / "settings"
    template = HAPROXY if proxy == "haproxy" else VARNISH
    folder.chmod(0o755)  # Varnish reads it under an account of its own.
    settings.write_text(template.format(host=HOST, port=port, server=server))
    commands = {
        "haproxy": ["haproxy", "-db", "-f", str(settings)],
        "varnish": ["varnishd", "-F", "-a", f"{HOST}:{port}", "-f", str(settings), "-n", str(folder / "varnish")],
    }
    rows = json.loads(TABLE.read_text())
    found: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(ringloop, server, folder / "server.log"))
        stack.enter_context(running(commands[proxy], port, folder / "proxy.log"))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for wrong in pool.map(lambda numbered: send_row(port, *numbered), enumerate(rows)):
                found += wrong
        answer = exchange(
            server, b"GET /report HTTP/1.1\r\nHost: h\r\nX-Report: yes\r\nConnection: close\r\n\r\n", PATIENCE_S
        )
        report = json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])
    found += report["problems"]
    if "Traceback" in (log := (folder / "server.log").read_text()):
        found.append(log)
    seen = report["count"] - len(rows)
    print(f"{proxy}, {backend}: {len(rows)} rows, of which the application saw {seen} requests; {len(found)} problems")
    for problem in found:
        print(f"    {problem[:500]}")
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    arguments = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin"
    for program, package in (("haproxy", "haproxy"), ("varnishd", "varnish")):
        if shutil.which(program) is None:
            print(f"{program} is not installed: apt-get install {package}", file=sys.stderr)
            return 2
    wrong = 0
    for backend in arguments.backend or BACKENDS:
        for proxy in ("haproxy", "varnish"):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    wrong += run(proxy, backend, Path(folder))
                except (OSError, RuntimeError) as error:
                    print(error, file=sys.stderr)
                    return 2
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
