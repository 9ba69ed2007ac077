"""Becomes a server of applications with what a cell asks for.

    serve.py --interface asgi|wsgi --server NAME --feature FEATURE --port PORT --build FOLDER

All servers have one process that serves, the same backlog, no access log unless the cell is about it, and keep connections
open for as long as they can be told to. WSGI applications get four threads where the server has any.
"""

import argparse
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
BACKLOG = 1024
REST_S = 3600
"""How long connections may rest."""
CONNECTIONS_MAX = 20_000
"""Connections, where a server has a limit."""
REQUESTS_MAX = 1_000_000_000
"""Requests on one connection, where a server has a limit."""
BODY_MAX = 1 << 24
"""Bytes of a request body, where the limit would be below a cell's."""
THREADS = 4
"""A WSGI application's threads."""
SLEEPERS = 16
"""Extra threads for the feature "sleepers": one for each request that sleeps."""
APPLICATION = "applications:application"
APPLICATION_OF = dict.fromkeys(["hello-log", "tls", "http2", "http2-tls", "idle", "idle-tls"], "hello")
"""By feature, where it isn't called the same."""
TLS = ("tls", "http2-tls", "idle-tls")
HTTP2 = ("http2", "http2-tls")


def common_words(arguments: argparse.Namespace) -> list[str]:
    """Return what most servers understand alike."""
    return [APPLICATION, "--host", arguments.host, "--port", str(arguments.port), "--backlog", str(BACKLOG)]


def uvicorn_words(arguments: argparse.Namespace) -> list[str]:
    """Return what uvicorn and ringloop understand alike."""
    words = [*common_words(arguments), "--timeout-keep-alive", str(REST_S), "--timeout-graceful-shutdown", "1"]
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
    words = ["ringloop", "serve", *uvicorn_words(arguments), "--backend", arguments.backend]
    if arguments.interface == "wsgi":
        words += ["--interface", "wsgi", "--wsgi-threads", arguments.threads]
    if arguments.feature in HTTP2:
        words += ["--limit-http2-requests", "0"]  # The load keeps its connections.
    return words


def granian(arguments: argparse.Namespace) -> list[str]:
    """Return granian's command."""
    words = ["granian", *common_words(arguments), "--interface", arguments.interface, "--workers", "1"]
    words += ["--loop", "uvloop"] if arguments.interface == "asgi" else ["--blocking-threads", arguments.threads]
    words += ["--backpressure", str(CONNECTIONS_MAX)]
    words += ["--http", "2" if arguments.feature in HTTP2 else "1", "--http1-header-read-timeout", "60000"]
    words += ["--access-log"] if arguments.log else ["--no-access-log", "--log-level", "warning"]
    if arguments.tls:
        words += ["--ssl-certificate", arguments.certificate, "--ssl-keyfile", arguments.key]
    return words


def bound_words(arguments: argparse.Namespace) -> list[str]:
    """Return what hypercorn and gunicorn understand alike."""
    words = [APPLICATION, "--bind", f"{arguments.host}:{arguments.port}", "--backlog", str(BACKLOG), "--workers", "1"]
    words += ["--keep-alive", str(REST_S), "--graceful-timeout", "1"]
    words += ["--access-logfile", "-"] if arguments.log else ["--log-level", "warning"]
    if arguments.tls:
        words += ["--certfile", arguments.certificate, "--keyfile", arguments.key]
    return words


def hypercorn(arguments: argparse.Namespace) -> list[str]:
    """Return hypercorn's command."""
    return ["hypercorn", *bound_words(arguments), "--worker-class", "uvloop"]


def gunicorn(arguments: argparse.Namespace) -> list[str]:
    """Return gunicorn's command."""
    words = ["gunicorn", *bound_words(arguments), "--worker-connections", str(CONNECTIONS_MAX), "--no-control-socket"]
    if arguments.interface == "asgi":
        words += ["--worker-class", "asgi", "--asgi-loop", "uvloop"]
    else:
        words += ["--worker-class", "gthread", "--threads", arguments.threads]
    if arguments.feature in HTTP2:
        words += ["--http-protocols", "h2,h1", "--http2-cleartext", "prior-knowledge"]
    return words


def socketify(arguments: argparse.Namespace) -> list[str]:
    """Return socketify's command."""
    words = ["socketify", APPLICATION, "--host", arguments.host, "--port", str(arguments.port), "--workers", "1"]
    words += ["--interface", "asgi", "--disable-listen-log", "True"]
    if arguments.tls:
        words += ["--ssl-certfile", arguments.certificate, "--ssl-keyfile", arguments.key]
    return words


def m0serve(arguments: argparse.Namespace) -> list[str]:
    """Return m0serve's command."""
    words = ["m0serve", APPLICATION, "--host", arguments.host, "--port", str(arguments.port)]
    words += ["--protocol", arguments.interface, "--workers", "1"]
    if arguments.interface == "wsgi":
        words += ["--blocking-threads", arguments.threads]
    if arguments.log:
        words += ["--access-log"]
    return [*words, "--max-keepalive-requests", "0", "--idle-timeout", "0"]


def h2corn(arguments: argparse.Namespace) -> list[str]:
    """Return h2corn's command."""
    words = ["h2corn", APPLICATION, "--bind", f"{arguments.host}:{arguments.port}", "--backlog", str(BACKLOG)]
    words += ["--workers", "1", "--loop", "uvloop", "--timeout-keep-alive", "0", "--timeout-graceful-shutdown", "1"]
    words += ["--access-log" if arguments.log else "--no-access-log"]
    if arguments.tls:
        words += ["--certfile", arguments.certificate, "--keyfile", arguments.key]
    return words


def weft(arguments: argparse.Namespace) -> list[str]:
    """Return weft's command."""
    words = ["weft", *common_words(arguments), "--protocol", arguments.interface, "--workers", "1"]
    words += ["--keep-alive", str(REST_S), "--graceful-timeout", "1", "--max-connections", str(CONNECTIONS_MAX)]
    words += ["--access-log", "--log-level", "info"] if arguments.log else ["--log-level", "warning"]
    if arguments.interface == "wsgi":
        words += ["--wsgi-threads", arguments.threads]
    if arguments.tls:
        words += ["--tls-cert", arguments.certificate, "--tls-key", arguments.key]
    return words


def serve_fastpysgi(application: Any, arguments: argparse.Namespace) -> None:
    """Run FastPySGI, whose command line lacks most of its options."""
    import fastpysgi  # type: ignore[import-not-found]

    fastpysgi.server.backlog = BACKLOG
    fastpysgi.server.tcp_nodelay = 1
    if arguments.tls:
        fastpysgi.server.tls_list = [(arguments.certificate, arguments.key, None)]
    fastpysgi.server.hook_sigint = 0
    fastpysgi.run(application, arguments.host, arguments.port, loglevel=1)


def serve_bjoern(application: Any, arguments: argparse.Namespace) -> None:
    """Run bjoern, which has no command line."""
    import bjoern  # type: ignore[import-not-found]

    bjoern.run(application, arguments.host, arguments.port, listen_backlog=BACKLOG)


def serve_saltare(application: Any, arguments: argparse.Namespace) -> None:
    """Run saltare, whose command line lacks TLS."""
    import saltare  # type: ignore[import-not-found]

    saltare.optimize_process()  # Starts this program anew with -OO, as saltare's command does.
    saltare.run(
        application,
        arguments.host,
        arguments.port,
        ssl_certfile=arguments.certificate if arguments.tls else None,
        ssl_keyfile=arguments.key if arguments.tls else None,
        http2=arguments.feature in HTTP2,
        access_log=arguments.log,
        max_request_body=BODY_MAX,
        listen_backlog=BACKLOG,
        max_concurrent_connections=CONNECTIONS_MAX,
        max_keepalive_requests=REQUESTS_MAX,
        keep_alive_timeout=REST_S,
        shutdown_timeout=1,
    )


COMMANDS = {
    "uvicorn": uvicorn,
    "ringloop": ringloop,
    "granian": granian,
    "hypercorn": hypercorn,
    "gunicorn": gunicorn,
    "socketify": socketify,
    "m0serve": m0serve,
    "h2corn": h2corn,
    "weft": weft,
}
FUNCTIONS = {"fastpysgi": serve_fastpysgi, "bjoern": serve_bjoern, "saltare": serve_saltare}
WITHOUT_LOG = {"fastpysgi": "FastPySGI", "socketify": "socketify"}


def parse() -> argparse.Namespace:
    """Return the command line, with what follows from the feature."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])  # saltare starts this with -OO
    parser.add_argument("--interface", required=True, choices=["asgi", "wsgi"])
    parser.add_argument("--server", required=True, choices=[*COMMANDS, *FUNCTIONS])
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
    arguments.threads = str(THREADS + (SLEEPERS if arguments.feature == "sleepers" else 0))
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
    os.environ["RINGLAB_APPLICATION"] = APPLICATION_OF.get(feature, feature)
    os.environ["RINGLAB_FILE"] = str(arguments.build / "file.bin")
    folder = str(Path(__file__).resolve().parents[1] / arguments.interface)
    os.environ["PYTHONPATH"] = folder
    if arguments.server in FUNCTIONS:
        sys.path[0] = folder  # Where `python -m` of the others finds them, too.
        from applications import application

        return FUNCTIONS[arguments.server](application, arguments)
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
