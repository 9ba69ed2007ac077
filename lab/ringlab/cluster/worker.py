"""`ringlab worker`: a machine of a cluster.

Two processes: one is the worker of Dask, and the other one watches it, ends whatever it leaves, and starts it again. The worker ends
itself, with all that it has started, when the scheduler doesn't answer any more.
"""

import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ringlab import Refused, generator
from ringlab.cluster import INSTALL, LOAD, PORT, SERVER, Encryption, seat
from ringlab.manifest import MARK, RUN_MARK
from ringlab.process import die_with_parent, end_marked, module_command

LOST_AFTER_S = 10.0
"""After this time without an answer, a scheduler is lost: others may have the CPU for a while."""
LOOK_S = 1.0
CONNECT_TIMEOUT_S = 30
AGAIN_AFTER_S = 1.0
EXIT_LOST = 3
"""The scheduler was there, and is lost."""
EXIT_UNREACHABLE = 4
"""The scheduler was never there."""
EXIT_REFUSED = 2
QUIET: dict[str, Any] = {
    # A profiler that looks at every thread 100 times a second would be measured, too.
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.admin.tick.limit": "10s",
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": "15s",
}
"""Settings of Dask for whatever measures."""


@dataclass
class Options:
    """How a worker runs."""

    role: str
    scheduler: str
    name: str = ""
    host: str = ""
    cpus: list[int] = field(default_factory=list)
    targets_folder: str = ""
    encryption: Encryption = field(default_factory=Encryption)


def dask_library() -> Any:
    """Return Dask distributed, without its types, with the settings of whatever measures; raise Refused where it isn't installed."""
    try:
        import dask
        import distributed
    except ImportError as error:
        raise Refused(f"several machines need Dask ({error}): {INSTALL}") from None
    dask.config.set(QUIET)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return distributed


def check_address(scheduler: str) -> str:
    """Return the address of a scheduler in full; raise Refused."""
    try:
        parts = urlsplit(scheduler if "://" in scheduler else f"tcp://{scheduler}")
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme not in ("tcp", "tls") or parts.path:
        raise Refused(
            f"{scheduler!r} is no address of a scheduler: write it as tcp://HOST:{PORT}, or tls://HOST:{PORT}"
        )
    return f"{parts.scheme}://{host}:{port}"


def own_address(scheduler: str) -> str:
    """Return this machine's address towards a scheduler; raise Refused."""
    parts = urlsplit(scheduler)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname, parts.port))
            address: str = probe.getsockname()[0]
            return address
    except OSError as error:
        raise Refused(f"{scheduler} can't be reached from here: {error.strerror or error}") from None


def security(encryption: Encryption) -> Any:
    """Return Dask's settings for TLS, None without."""
    if encryption == Encryption():
        return None
    library = dask_library()
    roles = ("client", "worker", "scheduler")
    files: dict[str, Any] = {f"tls_{role}_cert": encryption.certificate for role in roles}
    files |= {f"tls_{role}_key": encryption.key for role in roles}
    return library.Security(require_encryption=True, tls_ca_file=encryption.ca_file, **files)


async def lost(worker: Any) -> None:
    """Return when the scheduler doesn't answer any more."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await asyncio.wait_for(worker.scheduler.identity(n_workers=0), LOST_AFTER_S)
        except (OSError, TimeoutError):
            return


async def work(options: Options) -> int:
    """Be a worker until the scheduler is lost; return the exit status."""
    me, library = seat.here(), dask_library()
    with tempfile.TemporaryDirectory(prefix="ringlab-worker-") as folder:
        worker = library.Worker(
            options.scheduler,
            nthreads=1,
            resources={options.role: 1},
            host=me.host,
            security=security(options.encryption),
            local_directory=folder,
            memory_limit=0,
            dashboard=False,
            death_timeout=CONNECT_TIMEOUT_S,
        )
        try:
            await worker
        except Exception as error:  # Dask raises whatever went wrong, even RuntimeError.
            cause = error.__cause__ or error
            print(
                f"no scheduler answers at {options.scheduler} ({cause}); start one there with `dask scheduler`",
                file=sys.stderr,
                flush=True,
            )
            return EXIT_UNREACHABLE
        print(f"{me.name}: {options.role} at {me.host}, connected to {options.scheduler}", flush=True)
        waiting = {asyncio.ensure_future(worker.finished()), asyncio.ensure_future(lost(worker))}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        print(f"{me.name}: the scheduler is lost; everything that runs here is ended", file=sys.stderr, flush=True)
        return EXIT_LOST


def main() -> None:
    """Be the worker's process: its options are the only argument, as JSON."""
    content = json.loads(sys.argv[1])
    options = Options(**content | {"encryption": Encryption(**content["encryption"])})
    seat.HERE = seat.Here(
        name=options.name,
        role=options.role,
        host=options.host,
        cpus=options.cpus,
        targets_folder=Path(options.targets_folder) if options.targets_folder else None,
    )
    code = EXIT_LOST
    with contextlib.suppress(KeyboardInterrupt):
        code = asyncio.run(bounded(options))
    leave(code)


async def bounded(options: Options) -> int:
    """Work, and leave without waiting for tasks that are blocked."""
    code = await work(options)
    leave(code)
    return code


def leave(code: int) -> None:
    """End this process at once, and first all that it has started: threads of tasks may wait for them."""
    end_marked()
    os._exit(code)


def run(options: Options) -> int:
    """Keep a worker running until an interrupt; return the exit status."""
    # Only its process imports Dask, which takes half a second.
    if importlib.util.find_spec("distributed") is None:
        raise Refused(f"several machines need Dask: {INSTALL}")
    if options.role not in (SERVER, LOAD):
        raise Refused(f"a worker's role is {SERVER} or {LOAD}, not {options.role!r}")
    options.scheduler = check_address(options.scheduler)
    options.host = options.host or own_address(options.scheduler)
    options.name = options.name or f"{socket.gethostname()}-{options.role}"
    words = module_command("ringlab.cluster.worker", json.dumps(dataclasses.asdict(options)))
    # It may have to be built, which takes longer than the lab waits for a machine that is asked what it has.
    with contextlib.suppress(generator.GeneratorMissing):
        generator.find()
    connected = False
    while True:
        # It inherits the mark, and its own is within: what it starts is found by both.
        child = subprocess.Popen(
            [*die_with_parent(), *words],
            env=dict(os.environ) | {MARK: RUN_MARK},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            end_marked()
        connected = connected or code not in (EXIT_UNREACHABLE, EXIT_REFUSED, 1)
        if not connected:
            return EXIT_REFUSED
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
            print(f"{options.name}: the worker {how}; it is started again", file=sys.stderr, flush=True)
        time.sleep(AGAIN_AFTER_S)


if __name__ == "__main__":
    main()
