"""Uses the loop, or `ringloop serve`, for a long time, always in new ways, and watches the resources of the process.

    make soak                                             the loop's state machines, for an hour
    make soak ARGS="--minutes 5"                          less
    make soak ARGS="--seed 123 --machines TlsMachine"     starting from a seed, to repeat a failure
    make soak ARGS="--machines FileMachine,ChildMachine,ScarcityMachine"    files, children, and a lack of descriptors
    make soak ARGS="--machines limited_memory"            processes with hardly any memory
    make soak ARGS="--threads 2"                          in this many threads at once, while another one collects garbage
    make soak ARGS="server"                               clients of all kinds against `ringloop serve`, for an hour
    make soak ARGS="server --minutes 5 --arms epoll"
    make soak ARGS="server --interface wsgi"              clients of HTTP against random WSGI views

A failure of a state machine prints its seed and its steps. Growth is a failure, too: of the number of descriptors, or of memory
beyond the first rounds. For the server see server_soak.py and wsgi_soak.py. Exits with 0 if nothing was wrong, and with 130 after Ctrl-C.

The process starts itself again with PYTHONMALLOC=malloc, because CPython's own allocator rarely returns memory. Under
that one the resident set grows by a megabyte in each round, even with asyncio, though nothing leaks. Free-threaded Pythons have no
other allocator than theirs.
"""

import argparse
import ctypes
import gc
import importlib
import logging
import os
import pathlib
import statistics
import sys
import sysconfig
import threading
import time

import hypothesis
from hypothesis.stateful import run_state_machine_as_test

import support

MACHINES = {
    "PlainMachine": "state_machines",
    "TcpMachine": "state_machines",
    "TlsMachine": "state_machines",
    "DatagramMachine": "state_machines",
    "PipeMachine": "state_machines",
    "UnixStreamsMachine": "stream_machines",
    "TcpStreamsMachine": "stream_machines",
    "FileMachine": "file_machines",
    "ChildMachine": "child_machines",
    "ScarcityMachine": "scarcity_machines",
    "limited_memory": "limited_memory",
}
"""Where the machines are, and one function, of which each call is an example."""
WHOLE_PROCESS = ("ScarcityMachine", "limited_memory")
"""Those that limit what the process has. With --threads they are left out."""
C_LIBRARY = ctypes.CDLL(None)
WARM_UP_ROUNDS = 5
GROWTH_BYTES_MAX = 10 << 20
"""Since the end of the warm-up. Hypothesis and asyncio, which run in the same process, keep some of it."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", nargs="?", choices=("loop", "server"), default="loop")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000, help="of the first round")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=("io_uring", "epoll"))
    parser.add_argument(
        "--interface", choices=("asgi", "wsgi"), default="asgi", help="server: of the application; default: asgi"
    )
    parser.add_argument(
        "--machines", type=lambda text: text.split(","), default=tuple(MACHINES), help="loop: which ones"
    )
    parser.add_argument("--examples", type=int, default=20, help="loop: of each machine in a round")
    parser.add_argument("--steps", type=int, default=40, help="loop: in an example, at most")
    parser.add_argument("--threads", type=int, default=1, help="loop: how many run machines at once; default: 1")
    options = parser.parse_args()
    if options.threads > 1:
        options.machines = tuple(machine for machine in options.machines if machine not in WHOLE_PROCESS)
    return options


def run(machine, arm, seed, examples, steps):
    """Run a machine with the examples of this seed; raise what fails, with its steps."""
    subject = getattr(importlib.import_module(MACHINES[machine]), machine)
    if not isinstance(subject, type):
        # An example is a process that does as much as all those of a machine.
        subject(arm, seed)
        return

    @hypothesis.seed(seed)
    def make():
        return subject(arm)

    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(make, settings=settings)


def run_all(options, seed):
    """Run each machine on each arm, and exit with what fails."""
    for arm in options.arms:
        for machine in options.machines:
            try:
                run(machine, arm, seed, options.examples, options.steps)
            except Exception:
                again = f"--minutes 0 --seed {seed}" + (f" --threads {options.threads}" if options.threads > 1 else "")
                print(f"failed: {machine} on {arm}, seed {seed}; again: make soak ARGS='{again}'")
                raise


def run_in_threads(options, seed):
    """Do the same in several threads at once, each with other seeds, while one more forces collections. Raise what fails first."""
    over, failures = threading.Event(), []

    def begin(number):
        try:
            run_all(options, seed + number * 1_000_000_000)
        except BaseException as error:
            failures.append(error)

    def collect():
        while not over.wait(0.02):
            gc.collect()

    # Ctrl-C ends the process without waiting for them.
    threads = [threading.Thread(target=begin, args=[number], daemon=True) for number in range(options.threads)]
    collector = threading.Thread(target=collect)
    try:
        for thread in (*threads, collector):
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        over.set()
    collector.join()
    if failures:
        raise failures[0]


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def resident_bytes():
    """Return what the process occupies once the C library has returned what is free."""
    if hasattr(C_LIBRARY, "malloc_trim"):
        C_LIBRARY.malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak_loop(options):
    deadline = time.monotonic() + options.minutes * 60
    held_descriptors, held_bytes = [], []
    seed = options.seed
    while not held_bytes or time.monotonic() < deadline:
        if options.threads > 1:
            run_in_threads(options, seed)
        else:
            run_all(options, seed)
        gc.collect()
        held_descriptors.append(descriptors())
        held_bytes.append(resident_bytes())
        print(f"seed {seed}: {held_descriptors[-1]} descriptors, {held_bytes[-1] / 1e6:.0f} MB", flush=True)
        seed += 1
        if held_descriptors[-1] > held_descriptors[0]:
            sys.exit("descriptors leak")
        if memory_grows(held_bytes):
            sys.exit("memory grows")


def memory_grows(held_bytes):
    """Return whether it does from round to round, given the size after each. A peak of one round is no growth."""
    since = held_bytes[WARM_UP_ROUNDS:]
    return len(since) > 4 and statistics.median(since[-3:]) - min(since[:3]) > GROWTH_BYTES_MAX


def soak_server(options):
    sys.path.append(str(pathlib.Path(__file__).parent / "http"))
    import server_soak
    import wsgi_soak

    subject = {"asgi": server_soak.ASGI, "wsgi": wsgi_soak.WSGI}[options.interface]
    try:
        server_soak.soak(options.arms, minutes=options.minutes, seed=options.seed, subject=subject)
    except server_soak.Wrong as error:
        sys.exit(f"failed: {error}")


def main():
    support.heed_interrupts()
    options = arguments()
    has_allocators = not sysconfig.get_config_var("Py_GIL_DISABLED")
    if options.subject == "loop" and has_allocators and os.environ.get("PYTHONMALLOC") != "malloc":
        os.execve(sys.executable, sys.orig_argv, os.environ | {"PYTHONMALLOC": "malloc"})
    # asyncio logs what it finds odd about what is done here.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    what = ", ".join(options.machines) if options.subject == "loop" else f"ringloop serve, {options.interface}"
    print(f"seed {options.seed}, {options.minutes:g} minutes: {what} on {', '.join(options.arms)}", flush=True)
    try:
        {"loop": soak_loop, "server": soak_server}[options.subject](options)
    except KeyboardInterrupt:
        print("soak: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
