"""Becomes a WSGI server with what a cell asks for: serve.py --server NAME --feature FEATURE --port PORT --build FOLDER.

All servers have one process that serves, four threads for the application if they have any, the same backlog, no access log, and
keep connections open for as long as they can be told to.
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
THREADS = 4
"""The application's threads."""
SLEEPERS = 16
"""Extra threads for the feature "sleepers": one for each request that sleeps."""
APPLICATION = "applications:application"


def threads(arguments: argparse.Namespace) -> str:
    """Return how many threads the application gets."""
    return str(THREADS + (SLEEPERS if arguments.feature == "sleepers" else 0))


def ringloop(arguments: argparse.Namespace) -> list[str]:
    """Return ringloop's command."""
    words = [APPLICATION, "--host", arguments.host, "--port", str(arguments.port), "--backlog", str(BACKLOG)]
    words += ["--interface", "wsgi", "--wsgi-threads", threads(arguments), "--backend", arguments.backend]
    words += ["--timeout-keep-alive", str(REST_S), "--timeout-graceful-shutdown", "1"]
    return ["ringloop", "serve", *words, "--no-access-log", "--log-level", "warning", "--no-use-colors"]


def granian(arguments: argparse.Namespace) -> list[str]:
    """Return granian's command."""
    words = [APPLICATION, "--host", arguments.host, "--port", str(arguments.port), "--backlog", str(BACKLOG)]
    words += ["--interface", "wsgi", "--workers", "1", "--blocking-threads", threads(arguments)]
    words += ["--backpressure", str(CONNECTIONS_MAX), "--http", "1", "--http1-header-read-timeout", "60000"]
    return ["granian", *words, "--no-access-log", "--log-level", "warning"]


def gunicorn(arguments: argparse.Namespace) -> list[str]:
    """Return gunicorn's command."""
    words = [APPLICATION, "--bind", f"{arguments.host}:{arguments.port}", "--backlog", str(BACKLOG), "--workers", "1"]
    words += [
        "--worker-class",
        "gthread",
        "--threads",
        threads(arguments),
        "--worker-connections",
        str(CONNECTIONS_MAX),
    ]
    words += ["--keep-alive", str(REST_S), "--graceful-timeout", "1", "--no-control-socket"]
    return ["gunicorn", *words, "--log-level", "warning"]


def m0serve(arguments: argparse.Namespace) -> list[str]:
    """Return m0serve's command."""
    words = [APPLICATION, "--host", arguments.host, "--port", str(arguments.port), "--protocol", "wsgi"]
    words += [
        "--workers",
        "1",
        "--blocking-threads",
        threads(arguments),
        "--max-keepalive-requests",
        "0",
        "--idle-timeout",
        "0",
    ]
    return ["m0serve", *words]


def serve_fastpysgi(arguments: argparse.Namespace) -> None:
    """Run FastPySGI, whose command line lacks most of its options."""
    import fastpysgi  # type: ignore[import-not-found]
    from applications import application

    fastpysgi.server.backlog = BACKLOG
    fastpysgi.server.tcp_nodelay = 1
    fastpysgi.server.hook_sigint = 0
    fastpysgi.run(application, arguments.host, arguments.port, loglevel=1)


def serve_bjoern(arguments: argparse.Namespace) -> None:
    """Run bjoern, which has no command line."""
    import bjoern  # type: ignore[import-not-found]
    from applications import application

    bjoern.run(application, arguments.host, arguments.port, listen_backlog=BACKLOG)


COMMANDS = {"ringloop": ringloop, "granian": granian, "gunicorn": gunicorn, "m0serve": m0serve}
FUNCTIONS = {"fastpysgi": serve_fastpysgi, "bjoern": serve_bjoern}


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", required=True, choices=[*COMMANDS, *FUNCTIONS])
    parser.add_argument("--feature", required=True)
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--build", required=True, type=Path)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--show", action="store_true", help="print the server's command, and do nothing")
    return parser.parse_args()


def main() -> None:
    """Do what the module's docstring says."""
    arguments = parse()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.environ["RINGLAB_WSGI_APPLICATION"] = arguments.feature
    os.environ["RINGLAB_WSGI_FILE"] = str(arguments.build / "file.bin")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    if arguments.server in FUNCTIONS:
        return FUNCTIONS[arguments.server](arguments)
    words = [sys.executable, "-m", *COMMANDS[arguments.server](arguments)]
    if arguments.show:
        print(json.dumps(words))
        return None
    os.execv(sys.executable, words)


if __name__ == "__main__":
    main()
