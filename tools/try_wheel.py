"""Install ringloop from a wheel or a source distribution in a fresh virtual environment, and try it there.

usage: tools/try_wheel.py [--python PYTHON] [--tests ARGUMENTS] PACKAGE
       tools/try_wheel.py --foreign COMMAND [--tests ARGUMENTS] WHEEL
       PYTHON tools/try_wheel.py --here

The first form makes an environment from PYTHON, installs the package with its extra `serve`, and runs the third form in it, in an
empty folder. The third form tries the ringloop that the running interpreter imports: an echo over asyncio's streams on each
backend, and a request to `ringloop serve` on each. It uses only the standard library. io_uring is left out, and named, where it
is refused, as it is under qemu.

The second form is for interpreters that can't run pip: COMMAND starts a Python for another machine or C library, such as
"qemu-aarch64 -L TREE TREE/usr/bin/python3.14". This Python's pip unpacks the wheel for it.

`--tests "tests/tcp -k close"` runs tests of the repository afterwards, with what was installed; the words are pytest's arguments.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile

PATIENCE_S = 300
"""Under qemu, on a busy machine, `ringloop serve` takes a minute to start."""
APPLICATION = """\
async def app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})
"""


ROOT = pathlib.Path(__file__).resolve().parent.parent
FOR_TESTS = ("--group", f"{ROOT / 'pyproject.toml'}:test")
"""Arguments for pip, for what the tests need."""

SITE = """\
import sys

# The command, not the program for another machine: programs that run Python again find it here.
sys.executable = {!r}
"""


def install(package: pathlib.Path, python: str, folder: pathlib.Path, more: tuple[str, ...]) -> pathlib.Path:
    """Install a package in a new environment, and what `more` tells pip. Return the environment's interpreter."""
    environment = folder / "venv"
    subprocess.run([python, "-m", "venv", environment], check=True)
    executable = environment / "bin" / "python"
    pip = [str(executable), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    if more:
        subprocess.run([*pip, "--upgrade", "pip"], check=True)  # groups are new in pip 25.1
    subprocess.run([*pip, f"{package.resolve()}[serve]", *more], check=True)
    return executable


def foreign_platforms(tags: str) -> list[str]:
    """Return the platform tags that packages for a wheel's platform may have. pip doesn't add the older ones itself."""
    family, major, minor, machine = tags.split(".")[0].split("_", 3)
    # The oldest is that of Debian's first arm64, and of musl 1.1.
    platforms = [
        f"{family}_{major}_{older}_{machine}" for older in range(int(minor), 16 if family == "manylinux" else 0, -1)
    ]
    return [*platforms, f"manylinux2014_{machine}"] if family == "manylinux" else platforms


def unpack(wheel: pathlib.Path, command: str, folder: pathlib.Path, more: tuple[str, ...]) -> pathlib.Path:
    """Unpack a wheel for another machine, what its extra `serve` needs, and what `more` tells pip.

    Return the folder to import from.
    """
    packages = folder / "packages"
    python, _, tags = wheel.stem.split("-")[2:5]
    foreign = ["--python-version", python.removeprefix("cp"), "--implementation", "cp"]
    foreign += [word for abi in (python, "abi3", "none") for word in ("--abi", abi)]
    foreign += [word for platform in foreign_platforms(tags) for word in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--target", str(packages)]
    subprocess.run([*pip, "--only-binary=:all:", *foreign, f"{wheel.resolve()}[serve]", *more], check=True)
    if len(shlex.split(command)) == 1:
        (packages / "sitecustomize.py").write_text(SITE.format(command))
    return packages


def echo(backend: str) -> str:
    """Echo some data over TCP, on a loop of the backend. Return why the loop has that backend."""
    import asyncio

    import ringloop

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        sent = os.urandom(1_000_000)
        writing = asyncio.ensure_future(write(writer, sent))
        assert await reader.readexactly(len(sent)) == sent
        await writing
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    loop = ringloop.new_event_loop(backend=backend)
    try:
        loop.run_until_complete(asyncio.wait_for(main(), PATIENCE_S))
        assert loop.backend == backend
        return str(loop.backend_reason)
    finally:
        loop.close()


def request(backend: str, folder: pathlib.Path, python: list[str]) -> None:
    """Start `ringloop serve` on the backend, and make a request."""
    import http.client
    import signal
    import socket

    (folder / "application.py").write_text(APPLICATION)
    # A socket that is bound already needs no free port to be guessed, and accepts before the server does.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [*python, "-m", "ringloop", "serve", "application:app", "--fd", str(listener.fileno())]
        command += ["--log-level", "warning", "--no-access-log"]
        environment = os.environ | {"RINGLOOP_BACKEND": backend}
        server = subprocess.Popen(command, cwd=folder, env=environment, pass_fds=[listener.fileno()])
        try:
            client = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=PATIENCE_S)
            client.request("GET", "/")
            response = client.getresponse()
            assert (response.status, response.read()) == (200, b"hello")
            client.close()
        finally:
            server.terminate()
            status = server.wait(PATIENCE_S)
        # It ends as the signal would have ended it, when all requests are answered.
        assert status == -signal.SIGTERM, f"ringloop serve ended with {status}"


def try_here(python: list[str]) -> None:
    """Try the ringloop that this interpreter imports. `python` is the command that starts it."""
    import importlib.metadata
    import json

    import ringloop

    scripts = importlib.metadata.distribution("ringloop").entry_points
    assert {script.name for script in scripts} == {"ringloop", "ringloop-gunicorn"}
    assert all(callable(script.load()) for script in scripts)
    print(f"ringloop {ringloop.__version__} from {os.path.dirname(ringloop.__file__)}")
    print(
        f"CPython {platform.python_version()}, {platform.machine()}, {' '.join(platform.libc_ver()).strip() or 'musl'}"
    )
    report = subprocess.run([*python, "-m", "ringloop", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    facts = json.loads(report.stdout)
    for backend in ("epoll", "io_uring"):
        if backend == "io_uring" and not facts["io_uring"]:
            print(f"io_uring: not tried: {facts['io_uring_reason']}")
            continue
        print(f"echo: {echo(backend)}")
        with tempfile.TemporaryDirectory() as folder:
            request(backend, pathlib.Path(folder), python)
        print(f"serve: answered a request on {backend}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--here", action="store_true", help="try the installed ringloop; install nothing")
    parser.add_argument("--foreign", metavar="COMMAND", help="a command that starts an interpreter which can't run pip")
    parser.add_argument(
        "--python", default=sys.executable, help="the interpreter for the environment; default: this one"
    )
    parser.add_argument("--tests", metavar="ARGUMENTS", help="also run pytest with these, in the repository")
    parser.add_argument("package", nargs="?", type=pathlib.Path, metavar="PACKAGE", help="a wheel or a .tar.gz")
    arguments = parser.parse_args()
    foreign = shlex.split(arguments.foreign or "")
    if arguments.here:
        try_here(foreign or [sys.executable])
        return 0
    if arguments.package is None:
        parser.error("name a wheel or a source distribution, or --here")
    # Neither the repository nor its environment may be on the path of what is tried.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    here = [str(pathlib.Path(__file__).resolve()), "--here"]
    more = FOR_TESTS if arguments.tests else ()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if foreign:
            environment["PYTHONPATH"] = str(unpack(arguments.package, arguments.foreign, folder, more))
            python = foreign
            here += ["--foreign", arguments.foreign]
        else:
            python = [str(install(arguments.package, arguments.python, folder, more)), "-I"]
        status = subprocess.run([*python, *here], cwd=folder, env=environment, check=False).returncode
        if arguments.tests and not status:
            pytest = [
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "--rootdir",
                str(ROOT),
                "-c",
                str(ROOT / "pyproject.toml"),
            ]
            command = [*python, *pytest, *shlex.split(arguments.tests)]
            status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        return status


if __name__ == "__main__":
    sys.exit(main())
