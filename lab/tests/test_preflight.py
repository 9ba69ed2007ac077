"""The findings of preflight on machines, which are made up here."""

import os
from pathlib import Path

import pytest

from ringlab import preflight

Files = dict[str, str]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Return small files of the kernel, as a test wants them; all others are missing."""
    made: Files = {}
    monkeypatch.setattr(preflight, "read_text", lambda path: made.get(path, ""))
    return made


@pytest.mark.parametrize(
    ("cpus", "shared", "workers", "server", "client"),
    [
        ({0, 1}, {}, 1, [0], [1]),
        ({0, 1, 2, 3}, {}, 2, [0, 1], [2]),
        ({0, 1, 2, 3}, {0: "0-1", 2: "2-3"}, 1, [0], [2]),
        ({0, 1, 2, 3}, {0: "0,2", 1: "1,3"}, 1, [0], [1]),
        ({0, 1}, {0: "0-1"}, 1, [0], [1]),
        ({5}, {}, 1, [], []),
        ({0, 1}, {}, 2, [], []),
    ],
)
def test_server_and_load_get_cpus_of_their_own(
    cpus: set[int],
    shared: dict[int, str],
    workers: int,
    server: list[int],
    client: list[int],
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight.os, "sched_getaffinity", lambda pid: cpus)
    for cpu, text in shared.items():
        files[f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = text
    found = preflight.place(workers)
    assert (found.server, found.client) == (server, client)
    same_core = bool(client) and client[0] in preflight.siblings(server[0])
    assert ("they share a core" in found.text) == same_core
    assert found.text.startswith("apart: " if server else "free: ")
    assert preflight.check_cpus(found).status == ("ok" if server and not same_core else "warning")


def test_refused_io_uring_is_told(files: Files) -> None:
    assert preflight.check_io_uring().status == "ok"
    files["/proc/sys/kernel/io_uring_disabled"] = "2"
    assert "kernel.io_uring_disabled is 2" in preflight.check_io_uring().text


def test_stolen_time_is_told(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["cpu  100 0 100 800 0 0 0 0 0 0", "cpu  110 0 110 830 0 0 0 50 0 0"])
    monkeypatch.setattr(preflight, "read_text", lambda path: next(lines))
    monkeypatch.setattr(preflight, "STEAL_SAMPLE_S", 0)
    found = preflight.check_steal()
    assert found.status == "warning"
    assert "takes 50% of the CPU time" in found.text


def test_sockets_in_time_wait_are_counted_and_waited_for(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "sockets: used 100\nTCP: inuse 5 orphan 0 tw {} alloc 7 mem 1\n"
    files["/proc/net/sockstat"] = text.format(30_000)
    assert preflight.time_wait_count() == 30_000
    assert preflight.check_time_wait().status == "warning"
    assert not preflight.drain_time_wait(0)
    monkeypatch.setattr(preflight.time, "sleep", lambda seconds: files.update({"/proc/net/sockstat": text.format(10)}))
    assert preflight.drain_time_wait(10)


def test_system_calls_are_counted_by_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(
        preflight.shutil, "which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None
    )
    assert preflight.system_call_tool() == ("", "perf isn't installed; strace isn't installed")
    for name, code in (("perf", 1), ("strace", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    assert preflight.system_call_tool() == ("strace", "")
    (tmp_path / "strace").write_text("#!/bin/sh\nexit 1\n")
    assert preflight.system_call_tool() == ("", "perf isn't allowed to trace; strace isn't allowed to trace")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("exit 0", ("instructions", "")),
        ('case "$*" in *:u*) exit 0;; esac; exit 1', ("instructions:u", "")),
        (
            "echo '<not supported>,,instructions' >&2",
            ("", "the machine has no counters for them, as most virtual ones"),
        ),
        ("exit 1", ("", "perf isn't allowed to count (kernel.perf_event_paranoid)")),
    ],
)
def test_instructions_are_counted_where_that_is_allowed(
    script: str, found: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "perf"
    monkeypatch.setattr(preflight.shutil, "which", lambda name: str(program) if program.exists() else None)
    assert preflight.instruction_event() == ("", "perf isn't installed")
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert preflight.instruction_event() == found


def test_the_real_machine_is_described() -> None:
    found = preflight.environment(None)
    assert found.cpus >= found.cpus_usable >= 1
    assert found.memory_bytes > 0
    assert found.kernel


def test_what_waits_for_a_cpu_now_is_told(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load average says what was a minute ago; it is asked only where the kernel counts no pressure."""
    total = 0

    def sleep(seconds: float) -> None:
        nonlocal total
        total += round(0.4 * 1e6 * seconds)
        files["/proc/pressure/cpu"] = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull total=5"

    monkeypatch.setattr(preflight.time, "sleep", sleep)
    monkeypatch.setattr(preflight.os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert "load average 99.00" in preflight.check_load().text
    found = preflight.check_load()
    assert (found.status, found.text) == (
        "warning", "something waits for a CPU 40% of the time: other programs are running"
    )  # fmt: skip
    files["/proc/pressure/cpu"] = "some avg10=90.00 avg60=0.00 avg300=0.00 total=7"
    monkeypatch.setattr(preflight.time, "sleep", lambda seconds: None)
    assert preflight.check_load().status == "ok"


def test_cores_that_others_use_too_are_told_by_equal_work_that_takes_twice_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "pieces_of_work", lambda: {0: [100] * 100, 1: [100] * 50 + [200] * 50})
    found = preflight.check_pace()
    assert found.status == "warning"
    assert "took at least 2.00 times as long" in found.text
    # A few interrupted pieces are normal, and so are cores of different speed.
    monkeypatch.setattr(preflight, "pieces_of_work", lambda: {0: [100] * 95 + [900] * 5, 1: [300] * 100, 2: []})
    assert preflight.check_pace().status == "ok"


def test_pieces_of_work_run_on_each_cpu_and_leave_the_thread_where_it_may_run() -> None:
    before = os.sched_getaffinity(0)
    taken = preflight.pieces_of_work()
    assert list(taken) == sorted(before)[: preflight.PACE_CPUS]
    assert sum(map(len, taken.values())) > 20
    assert all(each > 0 for pieces in taken.values() for each in pieces)
    assert os.sched_getaffinity(0) == before
