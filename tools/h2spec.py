#!/usr/bin/env python3
"""Run h2spec, the conformance tests of HTTP/2, in strict mode against `ringloop serve`, on both backends.

h2spec is built with Go, through the Go module proxy, into the folder of cargo. Each backend is tested over TLS and over
plain TCP. Exits with 1 if another test fails than those in EXPECTED, or one of those passes, with 2 if h2spec cannot be built,
and with 77 if Go is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import trustme

from server_process import BACKENDS, HOST, free_port, running, serve

ROOT = Path(__file__).resolve().parent.parent
VERSION = "v2.2.1+incompatible"
PROGRAM = f"github.com/summerwind/h2spec/cmd/h2spec@{VERSION}"
MISSING = 77

# Tests that fail over plain TCP, and the reason.
EXPECTED = {
    "http2/3.5: Sends invalid connection preface": "What is not HTTP/2's preface is a request of HTTP/1.1: it gets a 400.",
}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body before it answers: an answer before the end of a request that is wrong would hide that."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


def install(folder: Path) -> Path:
    """Return the program, built if it is not there."""
    program = folder / f"h2spec-{VERSION}"
    if not program.exists():
        environment = {**os.environ, "GOBIN": str(folder / "bin"), "GOPATH": str(folder / "go")}
        environment["GOFLAGS"] = "-modcacherw"
        subprocess.run(["go", "install", PROGRAM], env=environment, check=True)
        (folder / "bin/h2spec").rename(program)
    return program


def run(program: Path, folder: Path, backend: str, *, tls: bool) -> tuple[int, set[str]]:
    """Return the number of tests, and the names of those that failed."""
    report = folder / f"{backend}.xml"
    options = ["--lifespan", "off", "--no-access-log"]
    if tls:
        options += ["--ssl-certfile", str(folder / "cert.pem"), "--ssl-keyfile", str(folder / "key.pem")]
    port = free_port()
    server = serve(f"{Path(__file__).stem}:app", port, backend, *options)
    with running(server, port, folder / "server.log"):
        command = [str(program), "--strict", "-h", HOST, "-p", str(port), "-j", str(report)]
        done = subprocess.run([*command, *(["-t", "-k"] if tls else [])], capture_output=True, text=True, check=False)
    if not report.exists():
        raise RuntimeError(f"h2spec has failed:\n{done.stdout}{done.stderr}")
    failed = set()
    tests = 0
    # h2spec copies bytes into the report that are not allowed in XML.
    text = re.sub(rb"[^\n -~]", b"?", report.read_bytes())
    for suite in xml.etree.ElementTree.fromstring(text).iter("testsuite"):
        for test in suite.iter("testcase"):
            tests += 1
            if test.find("failure") is not None or test.find("error") is not None:
                failed.add(f"{test.get('package')}: {test.get('classname')}")
    report.unlink()
    return tests, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--folder", type=Path, default=target / "h2spec", help="where h2spec is built")
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="default: both")
    arguments = parser.parse_args()
    if shutil.which("go") is None:
        print("left out: h2spec needs Go to be built")
        return MISSING
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        program = install(folder)
    except subprocess.CalledProcessError as error:
        print(f"h2spec can't be built: {error}", file=sys.stderr)
        return 2
    status = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        certificate = trustme.CA().issue_cert("127.0.0.1")
        (scratch / "cert.pem").write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
        certificate.private_key_pem.write_to_path(str(scratch / "key.pem"))
        for backend in arguments.backend or BACKENDS:
            for tls in (True, False):
                tests, failed = run(program, scratch, backend, tls=tls)
                expected = set() if tls else set(EXPECTED)
                print(f"{backend}, {'TLS' if tls else 'plain TCP'}: {tests - len(failed)} of {tests} passed")
                for test in sorted(failed | expected):
                    if test not in failed:
                        print(f"  passes, against EXPECTED: {test}")
                    else:
                        print(f"  failed: {test}\n    {EXPECTED.get(test, 'UNEXPECTED') if not tls else 'UNEXPECTED'}")
                if failed != expected or not tests:
                    status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
