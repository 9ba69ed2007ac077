"""Have gunicorn's tests of ASGI servers test `ringloop serve`, in a process that `tools/suites.py` runs.

pytest imports this module as a plugin. The tests ask for services that Docker runs, with nginx in front; here they get two
servers with two processes each, one of them with TLS, and nothing in front. The control, on asyncio, is gunicorn itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server_process import HOST, free_port, running, serve

LOOP = os.environ["RINGLOOP_SUITES_LOOP"]
APPLICATION = "apps.main_app:app"


def command(folder: Path, port: int, certificate: Path | None) -> list[str]:
    """Return the command that serves the tests' application; the certificate has its key beside it."""
    if LOOP != "asyncio":
        files = (
            [f"--ssl-certfile={certificate}", f"--ssl-keyfile={certificate.with_suffix('.key')}"] if certificate else []
        )
        return serve(APPLICATION, port, LOOP, f"--app-dir={folder}", "--workers=2", "--no-access-log", *files)
    files = [f"--certfile={certificate}", f"--keyfile={certificate.with_suffix('.key')}"] if certificate else []
    protocols = ["--http-protocols=h2,h1"] if certificate else []
    options = [f"--bind={HOST}:{port}", "--worker-class=asgi", "--workers=2", "--asgi-disconnect-grace-period=0"]
    return [sys.executable, "-m", "gunicorn", APPLICATION, f"--chdir={folder}", *options, *protocols, *files]


@pytest.fixture(scope="session")
def services(
    docker_compose_file: Path, certs_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Take the place of the tests' fixture `docker_services`."""
    logs = tmp_path_factory.mktemp("logs")
    with contextlib.ExitStack() as stack:
        urls = {}
        for scheme, certificate in (("http", None), ("https", certs_dir / "server.crt")):
            port = free_port()
            started = running(command(docker_compose_file.parent, port, certificate), port, logs / scheme)
            stack.enter_context(started)
            urls[f"gunicorn_{scheme}"] = urls[f"nginx_{scheme}"] = f"{scheme}://{HOST}:{port}"
        yield urls


@pytest.hookimpl(tryfirst=True)
def pytest_plugin_registered(plugin: object) -> None:
    """Replace the fixture before pytest finds it."""
    if hasattr(plugin, "docker_services"):
        setattr(plugin, "docker_services", services)  # noqa: B010
