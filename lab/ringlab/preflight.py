"""Checks before anything is measured: whether the machine is fit for it, and what will affect the figures."""

import contextlib
import os
import platform
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Collection
from pathlib import Path

import psutil

from ringlab import generator, results, sources
from ringlab.manifest import Arm
from ringlab.results import Finding

DESCRIPTORS_SPARE = 128
LOAD_MAX = 0.5
"""Of the load average per CPU."""
PRESSURE_SAMPLE_S = 0.3
PRESSURE_MAX = 0.1
"""The share of the time for which something may wait for a CPU while nothing is measured."""
PACE_SAMPLE_S = 0.4
PACE_CPUS = 4
PACE_MAX = 1.25
"""The ratio of the slow pieces of equal work to the quick ones; about 2 where another machine keeps the same cores busy."""
MEMORY_SHARE = 0.5
"""Of the memory that is available when a run begins: a server that takes more leaves too little for the rest."""
STEAL_SAMPLE_S = 0.3
STEAL_MAX = 0.05
TIME_WAIT_MAX = 2000
TIME_WAIT_DRAIN_S = 65
SYSTEM_CALL_TOOLS = ("perf", "strace")
VARIABLES = (
    "RINGLOOP_",
    "RINGLAB_",
    "PYTHON",
    "GOMAXPROCS",
    "GODEBUG",
    "UV_",
    "TOKIO_",
    "MALLOC_",
    "LD_PRELOAD",
    "NODE_OPTIONS",
)
DEBUG_VARIABLES = ("PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONMALLOC")


def read_text(path: str) -> str:
    """Return the contents of a small file, or nothing where there is none."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def siblings(cpu: int) -> set[int]:
    """Return the CPUs that share a core with `cpu` (sysfs, Documentation/admin-guide/cputopology.rst)."""
    text = read_text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    found = {cpu}
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def place(workers: int = 1, taken: Collection[int] = ()) -> results.Placement:
    """Return which CPUs are reserved for the servers, and which for the load; none of them is `taken`.

    Left alone, the kernel puts a server and its only client now on one CPU and now on two, and a message costs up to twice as
    much in one case as in the other: more than what is compared. So they are kept apart, on two cores where there are two, but a
    server only once it listens: one that looks how many CPUs it may use must see what it would see in production.
    """
    usable = sorted(os.sched_getaffinity(0).difference(taken))
    if len(usable) < workers + 1:
        return results.Placement(
            text=f"free: separating server and load takes {workers + 1} CPUs, and {len(usable)} may be used; the kernel places both"
        )
    server = usable[:workers]
    shared = set().union(*(siblings(cpu) for cpu in server))
    others = [cpu for cpu in usable[workers:] if cpu not in shared] or usable[workers:]
    client = others[:1]
    note = "" if client[0] not in shared else "; they share a core, so each slows the other"
    return results.Placement(
        server=server,
        client=client,
        text=f"apart: servers on CPU {', '.join(map(str, server))} once they listen, the load on CPU {client[0]}{note}",
    )


def raise_descriptor_limit(connections: int) -> Finding:
    """Raise the limit of descriptors as far as `connections` need it; servers and load inherit it."""
    needed = connections + DESCRIPTORS_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            return Finding(
                "descriptors",
                "error",
                f"{connections} connections need {needed} descriptors in one process, but the hard limit is {hard}",
                f"`ulimit -Hn {needed}` as root, or leave out the cells with {connections} connections",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return Finding("descriptors", "ok", f"{max(soft, needed)} in one process, {needed} are needed")


def check_cpus(placement: results.Placement) -> Finding:
    """Find out whether server and load can have CPUs of their own."""
    usable = len(os.sched_getaffinity(0))
    if not placement.server:
        return Finding(
            "CPUs",
            "warning",
            f"{usable} usable; {placement.text}: throughput and latency mean little, CPU per operation is usable",
            "allow two CPUs: `taskset`, the container's cpuset",
        )
    status: results.FindingStatus = "warning" if "share a core" in placement.text else "ok"
    return Finding("CPUs", status, f"{usable} usable; {placement.text}")


def check_governor() -> Finding:
    """Find out whether the CPUs' clock is fixed."""
    governors = {read_text(str(path)) for path in Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")}
    if not governors:
        return Finding("governor", "ok", "the machine reports none (usual in virtual machines)")
    if governors != {"performance"}:
        return Finding(
            "governor",
            "warning",
            f"{', '.join(sorted(governors))}: the CPUs' clock follows the load: ratios remain valid, but single figures don't",
            "`sudo pipx run pyperf system tune`",
        )
    return Finding("governor", "ok", "performance")


def pressure_s() -> dict[str, float]:
    """Return for how long something waited for a CPU since the machine started, in seconds, by the name "pressure".

    Nothing where the kernel doesn't count it (Documentation/accounting/psi.rst).
    """
    for word in read_text("/proc/pressure/cpu").partition("\n")[0].split():
        name, _, value = word.partition("=")
        if name == "total":
            return {"pressure": int(value) / 1e6}
    return {}


def check_load() -> Finding:
    """Find out whether other programs keep the machine busy: for how long something waits for a CPU, or else by the load average."""
    before = pressure_s()
    time.sleep(PRESSURE_SAMPLE_S)
    after = pressure_s()
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if before and after:
        share = (after["pressure"] - before["pressure"]) / PRESSURE_SAMPLE_S
        busy, text = share > PRESSURE_MAX, f"something waits for a CPU {100 * min(1.0, share):.0f}% of the time"
    else:
        busy, text = load > LOAD_MAX * cpus, f"load average {load:.2f} on {cpus} CPUs"
    if busy:
        return Finding(
            "load",
            "warning",
            f"{text}: other programs are running",
            "stop them (`top` shows them), or expect to need more rounds",
        )
    return Finding("load", "ok", text)


def pieces_of_work() -> dict[int, list[int]]:
    """Return the CPU time of many equal pieces of work, in ns, by the CPU that they ran on."""
    allowed = os.sched_getaffinity(0)
    cpus = sorted(allowed)[:PACE_CPUS]
    taken: dict[int, list[int]] = {cpu: [] for cpu in cpus}
    try:
        for cpu in 2 * cpus:
            os.sched_setaffinity(0, {cpu})
            end = time.monotonic() + PACE_SAMPLE_S / (2 * len(cpus))
            while time.monotonic() < end:
                begin = time.thread_time_ns()
                # It uses the cache and the branch predictor, as servers do.
                {number: str(number) for number in range(500)}
                taken[cpu].append(time.thread_time_ns() - begin)
    finally:
        os.sched_setaffinity(0, allowed)
    return taken


def check_pace() -> Finding:
    """Find out whether equal work takes equal time: what other machines do on the same cores doesn't show in the load average."""
    ratios = []
    for taken in map(sorted, pieces_of_work().values()):
        if taken:
            ratios.append(taken[len(taken) * 9 // 10] / max(taken[len(taken) // 10], 1))
    ratio = max(ratios, default=1.0)
    text = f"the slowest tenth of equal pieces of work took at least {ratio:.2f} times as long as the quickest tenth"
    if ratio > PACE_MAX:
        return Finding(
            "pace",
            "warning",
            f"{text}: other programs or virtual machines probably use the same cores",
            "wait until the machine is quiet, or expect to need more rounds",
        )
    return Finding("pace", "ok", text)


def cpu_ticks() -> tuple[int, int]:
    """Return how long all CPUs have done anything, and how long the hypervisor kept them, in clock ticks (proc_stat(5))."""
    fields = [int(each) for each in read_text("/proc/stat").splitlines()[0].split()[1:]]
    return sum(fields[:8]), fields[7] if len(fields) > 7 else 0


def stolen_s() -> float:
    """Return how long the hypervisor has kept CPUs that wanted to run, in seconds since the machine started."""
    return cpu_ticks()[1] / os.sysconf("SC_CLK_TCK")


def check_steal() -> Finding:
    """Find out whether the hypervisor gives the CPUs to others."""
    total, stolen = cpu_ticks()
    time.sleep(STEAL_SAMPLE_S)
    total_after, stolen_after = cpu_ticks()
    share = (stolen_after - stolen) / max(1, total_after - total)
    if share > STEAL_MAX:
        return Finding(
            "steal",
            "warning",
            f"the hypervisor takes {100 * share:.0f}% of the CPU time: single figures mean nothing, and ratios need more rounds",
            "measure at another time or on a machine of your own",
        )
    return Finding("steal", "ok", f"{100 * share:.1f}% of the CPU time")


def time_wait_count() -> int:
    """Return how many sockets are in TIME_WAIT."""
    for line in read_text("/proc/net/sockstat").splitlines():
        words = line.split()
        if words[:1] == ["TCP:"] and "tw" in words:
            return int(words[words.index("tw") + 1])
    return 0


def check_time_wait() -> Finding:
    """Find out whether closed connections still hold ports, which makes each bind slow."""
    count = time_wait_count()
    if count > TIME_WAIT_MAX:
        return Finding(
            "TIME_WAIT",
            "warning",
            f"{count} closed connections still hold their ports, which makes a bind up to a hundred times slower",
            "none: the bind workload waits until they are gone, a minute at most",
        )
    return Finding("TIME_WAIT", "ok", f"{count} closed connections hold ports")


def drain_time_wait(limit_s: float = TIME_WAIT_DRAIN_S) -> bool:
    """Wait until few closed connections hold ports; return whether that happened in time."""
    deadline = time.monotonic() + limit_s
    while time_wait_count() > TIME_WAIT_MAX:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def check_io_uring() -> Finding:
    """Find out whether the kernel grants io_uring."""
    disabled = read_text("/proc/sys/kernel/io_uring_disabled")
    if disabled in ("1", "2"):
        return Finding(
            "io_uring",
            "warning",
            f"kernel.io_uring_disabled is {disabled}: arms on io_uring fail or run on epoll",
            "`sysctl -w kernel.io_uring_disabled=0`",
        )
    return Finding("io_uring", "ok", "not disabled")


def check_debug() -> Finding:
    """Refuse debug builds and modes, whose figures mean nothing."""
    if found := [name for name in DEBUG_VARIABLES if os.environ.get(name)]:
        return Finding("debugging", "error", f"{' and '.join(found)} is set", f"`unset {' '.join(found)}`")
    if sysconfig.get_config_var("Py_DEBUG"):
        return Finding("debugging", "error", f"{sys.executable} is a debug build", "use a release build of Python")
    return Finding("debugging", "ok", "off")


def debug_build(arm: Arm) -> str:
    """Return why an arm's target is a debug build, or nothing."""
    command, artefact = arm.build.command, arm.expand(arm.build.artefact)
    if "cargo build" in command and "--release" not in command and "--profile" not in command:
        return f"its build command is `{command}`, a debug build: add --release"
    if "/debug/" in artefact:
        return f"its artefact is a debug build: {artefact}"
    return ""


REMEDY = "`cargo build --release -p ringlab-load`, in the folder `lab`"


def check_generator(program: Path | None, problem: str = "") -> Finding:
    """Find out whether there is a load generator, and no debug build of it."""
    if program is None:
        return Finding("load generator", "error", problem, REMEDY)
    try:
        version = generator.version(program)
    except generator.GeneratorMissing as error:
        return Finding("load generator", "error", str(error), REMEDY)
    if "debug" in version or program.parent.name == "debug":
        return Finding(
            "load generator",
            "error",
            f"{program} is a debug build, whose ceiling is far too low",
            f"{REMEDY}, and unset RINGLAB_LOAD",
        )
    return Finding("load generator", "ok", f"{version}, {program}")


def check_system_call_tool() -> Finding:
    """Find out with which tool system calls can be counted."""
    tool, why = system_call_tool()
    if tool:
        return Finding("system calls", "ok", f"counted by {tool}")
    return Finding(
        "system calls", "warning", f"can't be counted: {why}", "`apt-get install strace` (or `linux-perf`, as root)"
    )


def system_call_tool() -> tuple[str, str]:
    """Return the tool that can count system calls here, or nothing and why there is none. perf disturbs far less."""
    reasons = []
    for tool in SYSTEM_CALL_TOOLS:
        path = shutil.which(tool)
        if path is None:
            reasons.append(f"{tool} isn't installed")
            continue
        trial = [path, "stat", "-e", "raw_syscalls:sys_enter", "true"] if tool == "perf" else [path, "-f", "-c", "true"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(trial, capture_output=True, text=True, timeout=10, check=False)
            if done.returncode == 0 and "<not supported>" not in done.stderr:
                return tool, ""
        reasons.append(f"{tool} isn't allowed to trace")
    return "", "; ".join(reasons)


def instruction_event() -> tuple[str, str]:
    """Return the event by which perf counts instructions here, or nothing and why there is none."""
    path = shutil.which("perf")
    if path is None:
        return "", "perf isn't installed"
    why = "perf isn't allowed to count (kernel.perf_event_paranoid)"
    # Those of the kernel take a right that users seldom have.
    for event in ("instructions", "instructions:u"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            words = [path, "stat", "-x", ",", "-e", event, "true"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
            if "<not supported>" in done.stderr:
                return "", "the machine has no counters for them, as most virtual ones"
            if done.returncode == 0 and "<not counted>" not in done.stderr:
                return event, ""
    return "", why


def check_instructions() -> Finding:
    """Find out whether instructions can be counted."""
    event, why = instruction_event()
    if event:
        return Finding("instructions", "ok", f"counted by perf ({event})")
    return Finding(
        "instructions",
        "ok" if "no counters" in why else "warning",
        f"can't be counted: {why}",
        "`apt-get install linux-perf`, and `sysctl -w kernel.perf_event_paranoid=2`",
    )


def examine(connections: int, placement: results.Placement, program: Path | None, problem: str = "") -> list[Finding]:
    """Check everything, for cells with at most this many connections."""
    return [
        check_cpus(placement),
        raise_descriptor_limit(connections),
        check_governor(),
        check_load(),
        check_pace(),
        check_steal(),
        check_time_wait(),
        check_io_uring(),
        check_debug(),
        check_generator(program, problem),
        check_system_call_tool(),
        check_instructions(),
    ]


def memory_limit(megabytes: int | None) -> float:
    """Return what a server may take: what was asked for, or half of what the machine has left."""
    return megabytes * 1e6 if megabytes else MEMORY_SHARE * psutil.virtual_memory().available


def cpu_model() -> str:
    """Return the name of the CPU, as the kernel has it."""
    for line in read_text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "CPU part"):
            return value.strip()
    return platform.machine()


def revision(folder: Path) -> str:
    """Return the commit of the repository that contains `folder`, with '-dirty' where files differ from it."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def environment(program: Path | None) -> results.Environment:
    """Describe the machine."""
    vulnerabilities = Path("/sys/devices/system/cpu/vulnerabilities")
    clone = sources.clone()
    text = ""
    if program is not None:
        with contextlib.suppress(generator.GeneratorMissing):
            text = f"{program}, {generator.version(program)}"
    return results.Environment(
        host=platform.node(),
        kernel=platform.release(),
        machine=platform.machine(),
        cpu_model=cpu_model(),
        cpus=os.cpu_count() or 0,
        cpus_usable=len(os.sched_getaffinity(0)),
        cpu_governor=read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        hypervisor="hypervisor" in read_text("/proc/cpuinfo"),
        memory_bytes=psutil.virtual_memory().total,
        mitigations={path.name: read_text(str(path)) for path in sorted(vulnerabilities.glob("*"))},
        libc=" ".join(platform.libc_ver()),
        python=platform.python_version(),
        io_uring_disabled=read_text("/proc/sys/kernel/io_uring_disabled"),
        somaxconn=int(read_text("/proc/sys/net/core/somaxconn") or 0),
        tcp_congestion_control=read_text("/proc/sys/net/ipv4/tcp_congestion_control"),
        descriptors_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        load_average_begin=list(os.getloadavg()),
        generator=text,
        revision=revision(clone) if clone is not None else "",
        variables={name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
    )
