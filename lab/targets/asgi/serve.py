"""Becomes an ASGI server with what a cell asks for: serve.py --server NAME --feature FEATURE --port PORT --build FOLDER.

All servers have one process that serves, the same backlog, no access log unless the cell is about it, and keep connections
open for as long as they can be told to.
"""

import argparse
import json
import os
import resource
import sys
from pathlib import Path

HOST = "127.0.0.1"
BACKLOG = 1024
REST_S = 3600
"""How long connections may rest."""
CONNECTIONS_MAX = 20_000
"""Connections, where a server has a limit."""
APPLICATION = "applications:application"
APPLICATION_OF = dict.fromkeys(["hello-log", "tls", "http2", "http2-tls", "idle", "idle-tls"], "hello")
"""By feature, where it isn't called the same."""
TLS = ("tls", "http2-tls", "idle-tls")
HTTP2 = ("http2", "http2-tls")


def uvicorn_words(arguments: argparse.Namespace) -> list[str]:
    """Return what uvicorn and ringloop understand alike."""
    words = [APPLICATION, "--host", arguments.host, "--port", str(arguments.port), "--backlog", str(BACKLOG)]
    words += ["--timeout-keep-alive", str(REST_S), "--timeout-graceful-shutdown", "1"]
    words += ["--log-level", "info" if arguments.log else "warning"]
    words += ["--access-log" if arguments.log else "--no-access-log", "--no-use-colors"]
    if arguments.tls:
        words += ["--ssl-certfile", arguments.certificate, "--ssl-keyfile", arguments.key]
    return words


def uvicorn(arguments: argparse.Namespace) -> list[str]:
    """Return uvicorn's command."""
    return ["uvicorn", *uvicorn_words(arguments), "--loop", arguments.loop, "--http", "httptools"]


def ringloop(arguments: argparse.Namespace) -> list[str]:
    """Return ringloop's command."""
    # The load keeps its connections.
    words = ["--limit-http2-requests", "0"] if arguments.feature in HTTP2 else []
    return ["ringloop", "serve", *uvicorn_words(arguments), "--backend", arguments.backend, *words]


def granian(arguments: argparse.Namespace) -> list[str]:
    """Return granian's command."""
    words = [APPLICATION, "--host", arguments.host, "--port", str(arguments.port), "--backlog", str(BACKLOG)]
    words += ["--interface", "asgi", "--workers", "1", "--loop", "uvloop", "--backpressure", str(CONNECTIONS_MAX)]
    words += ["--http", "2" if arguments.feature in HTTP2 else "1", "--http1-header-read-timeout", "60000"]
    words += ["--access-log"] if arguments.log else ["--no-access-log", "--log-level", "warning"]
    if arguments.tls:
        words += ["--ssl-certificate", arguments.certificate, "--ssl-keyfile", arguments.key]
    return ["granian", *words]


def hypercorn(arguments: argparse.Namespace) -> list[str]:
    """Return hypercorn's command."""
    words = [APPLICATION, "--bind", f"{arguments.host}:{arguments.port}", "--backlog", str(BACKLOG), "--workers", "1"]
    words += ["--worker-class", "uvloop", "--keep-alive", str(REST_S), "--graceful-timeout", "1"]
    words += ["--access-logfile", "-"] if arguments.log else ["--log-level", "warning"]
    if arguments.tls:
        words += ["--certfile", arguments.certificate, "--keyfile", arguments.key]
    return ["hypercorn", *words]


def gunicorn(arguments: argparse.Namespace) -> list[str]:
    """Return gunicorn's command."""
    words = [APPLICATION, "--bind", f"{arguments.host}:{arguments.port}", "--backlog", str(BACKLOG), "--workers", "1"]
    words += ["--worker-class", "asgi", "--asgi-loop", "uvloop", "--worker-connections", str(CONNECTIONS_MAX)]
    words += ["--keep-alive", str(REST_S), "--graceful-timeout", "1", "--no-control-socket"]
    words += ["--access-logfile", "-"] if arguments.log else ["--log-level", "warning"]
    if arguments.tls:
        words += ["--certfile", arguments.certificate, "--keyfile", arguments.key]
    if arguments.feature in HTTP2:
        words += ["--http-protocols", "h2,h1", "--http2-cleartext", "prior-knowledge"]
    return ["gunicorn", *words]


def socketify(arguments: argparse.Namespace) -> list[str]:
    """Return socketify's command."""
    words = [
        APPLICATION,
        "--host",
        arguments.host,
        "--port",
        str(arguments.port),
        "--workers",
        "1",
        "--interface",
        "asgi",
    ]
    words += ["--disable-listen-log", "True"]
    if arguments.tls:
        words += ["--ssl-certfile", arguments.certificate, "--ssl-keyfile", arguments.key]
    return ["socketify", *words]


def serve_fastpysgi(arguments: argparse.Namespace) -> None:
    """Run FastPySGI, whose command line lacks most of its options."""
    import fastpysgi  # type: ignore[import-not-found]
    from applications import application

    fastpysgi.server.backlog = BACKLOG
    fastpysgi.server.tcp_nodelay = 1
    if arguments.tls:
        fastpysgi.server.tls_list = [(arguments.certificate, arguments.key, None)]
    fastpysgi.server.hook_sigint = 0
    fastpysgi.run(application, arguments.host, arguments.port, loglevel=1)


COMMANDS = {
    "uvicorn": uvicorn,
    "ringloop": ringloop,
    "granian": granian,
    "hypercorn": hypercorn,
    "gunicorn": gunicorn,
    "socketify": socketify,
}
WITHOUT_LOG = {"fastpysgi": "FastPySGI", "socketify": "socketify"}


def parse() -> argparse.Namespace:
    """Return the command line, with what follows from the feature."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", required=True, choices=[*COMMANDS, "fastpysgi"])
    parser.add_argument("--feature", required=True)
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--build", required=True, type=Path)
    parser.add_argument("--loop", default="uvloop")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--show", action="store_true", help="print the server's command, and do nothing")
    arguments = parser.parse_args()
    arguments.log = arguments.feature == "hello-log"
    arguments.tls = arguments.feature in TLS
    arguments.certificate = str(arguments.build / "certificate.pem")
    arguments.key = str(arguments.build / "key.pem")
    return arguments


def main() -> None:
    """Do what the module's docstring says."""
    arguments = parse()
    if arguments.log and arguments.server in WITHOUT_LOG:
        sys.exit(f"{WITHOUT_LOG[arguments.server]} has no access log")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    feature = arguments.feature
    os.environ["RINGLAB_ASGI_APPLICATION"] = APPLICATION_OF.get(feature, feature)
    os.environ["RINGLAB_ASGI_FILE"] = str(arguments.build / "file.bin")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    if arguments.server == "fastpysgi":
        return serve_fastpysgi(arguments)
    words = [sys.executable, "-m", *COMMANDS[arguments.server](arguments)]
    if arguments.show:
        print(json.dumps(words))
        return None
    if arguments.log:
        # Whoever reads the log costs CPU time, too, and that isn't the server's.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.dup2(null, sys.stderr.fileno())
    os.execv(sys.executable, words)


if __name__ == "__main__":
    main()
