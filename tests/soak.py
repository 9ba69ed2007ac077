"""Runs the state machines for a long time, always with new examples, and watches the resources of the process.

    make soak                                             an hour
    make soak ARGS="--minutes 5"                          less
    make soak ARGS="--seed 123 --machines TlsMachine"     starting from a seed, to repeat a failure

A failure prints its seed and its steps. Growth is a failure, too: of the number of descriptors, or of memory beyond the first rounds.
"""

import argparse
import gc
import logging
import os
import statistics
import sys
import time

import hypothesis
from hypothesis.stateful import run_state_machine_as_test

import state_machines

MACHINES = ("PlainMachine", "TcpMachine", "TlsMachine", "DatagramMachine")
WARM_UP_ROUNDS = 5
GROWTH_BYTES_MAX = 30 << 20
"""Since the end of the warm-up. Hypothesis and asyncio, which run in the same process, keep some of it."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000_000, help="of the first round")
    parser.add_argument("--machines", type=lambda text: text.split(","), default=MACHINES)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=("io_uring", "epoll"))
    parser.add_argument("--examples", type=int, default=20, help="of each machine in a round")
    parser.add_argument("--steps", type=int, default=40, help="in an example, at most")
    return parser.parse_args()


def run(machine, arm, seed, examples, steps):
    """Runs a machine with the examples of this seed; raises what fails, with its steps."""

    @hypothesis.seed(seed)
    def make():
        return getattr(state_machines, machine)(arm)

    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(make, settings=settings)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main():
    options = arguments()
    # asyncio logs what it finds odd about what is done here.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    print(
        f"seed {options.seed}, {options.minutes:g} minutes: {', '.join(options.machines)} on {', '.join(options.arms)}"
    )
    deadline = time.monotonic() + options.minutes * 60
    held_descriptors, held_bytes = [], []
    seed = options.seed
    while not held_bytes or time.monotonic() < deadline:
        for arm in options.arms:
            for machine in options.machines:
                try:
                    run(machine, arm, seed, options.examples, options.steps)
                except BaseException:
                    print(f"failed: {machine} on {arm}, seed {seed}; again: make soak ARGS='--minutes 0 --seed {seed}'")
                    raise
        gc.collect()
        held_descriptors.append(descriptors())
        held_bytes.append(resident_bytes())
        print(f"seed {seed}: {held_descriptors[-1]} descriptors, {held_bytes[-1] / 1e6:.0f} MB", flush=True)
        seed += 1
        if held_descriptors[-1] > held_descriptors[0]:
            sys.exit("descriptors leak")
        since = held_bytes[WARM_UP_ROUNDS:]
        if len(since) > 4 and statistics.median(since[-3:]) - min(since[:3]) > GROWTH_BYTES_MAX:
            sys.exit("memory grows")


if __name__ == "__main__":
    main()
