"""The lab's reaction to a load generator that is missing, can't be built, or misbehaves."""

import json
import socket
from pathlib import Path

import psutil
import pytest

from conftest import MakeTargets, children, worker_of
from ringlab import execution, generator, manifest
from ringlab.process import SampleFailed, Server, verify


def script(path: Path, text: str) -> Path:
    """Write a shell script that can be run."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def cargo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cargo of which the test says what it does."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "cargo"


def artefact(name: str, executable: str | None) -> str:
    return json.dumps({"reason": "compiler-artifact", "target": {"name": name}, "executable": executable})


def test_cargo_says_where_it_has_built(cargo: Path, tmp_path: Path) -> None:
    said = [artefact("libc", None), artefact("other", "/wrong"), artefact("ringlab-load", "/some/where/ringlab-load")]
    lines = "\n".join([*said, json.dumps({"reason": "build-finished", "success": True})])
    script(cargo, f"echo '   Compiling ringlab-load' >&2; cat <<'END'\n{lines}\nEND")
    told: list[str] = []
    assert generator.build(tmp_path, told.append) == Path("/some/where/ringlab-load")
    assert told[0].endswith("cargo build --release --locked --package ringlab-load")
    assert told[1:] == ["Compiling ringlab-load"]


def test_a_build_that_fails_is_told_with_its_words(cargo: Path, tmp_path: Path) -> None:
    script(cargo, "echo 'error: no such field' >&2; exit 101")
    with pytest.raises(
        generator.GeneratorMissing,
        match=r"^in .*--package ringlab-load` failed with code 101: error: no such field; all of its output: ",
    ):
        generator.build(tmp_path)


def test_a_build_that_hangs_is_told(cargo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "BUILD_TIMEOUT_S", 0.2)
    script(cargo, "exec sleep 60")
    with pytest.raises(generator.GeneratorMissing, match=r"^in .*: `.*` didn't end within 0 s; its output: "):
        generator.build(tmp_path)


def test_a_build_without_the_generator_is_told(cargo: Path, tmp_path: Path) -> None:
    script(cargo, "true")
    with pytest.raises(generator.GeneratorMissing, match="built no ringlab-load in .*: set RINGLAB_LOAD"):
        generator.build(tmp_path)


def test_the_last_event_is_the_result_and_all_are_seen(tmp_path: Path) -> None:
    program = script(
        tmp_path / "load", """printf '{"event":"window_'; sleep 0.1; printf 'start"}\\n{"event":"result"}\\n'"""
    )
    seen: list[str] = []
    result = generator.run(program, [], 1.0, lambda event: seen.append(event["event"]))
    assert result == {"event": "result"}
    assert seen == ["window_start", "result"]


@pytest.mark.parametrize(
    ("does", "complaint"),
    [
        ("echo 'no connection could be made' >&2; exit 1", "the load generator: no connection could be made"),
        ("kill -9 $$", "the load generator: exit status -9"),
        ("""echo '{"event":"window_end"}'""", r"ended without a result; its last event: {'event': 'window_end'}"),
        ("true", "ended without a result; its last event: none"),
        ("echo hello", "printed a line that is not an event: hello"),
        ("echo '[1]'", r"printed a line that is not an event: \[1\]"),
        (
            """echo '{"event":"result","schema_version":2}'""",
            "results are of version 2, not 1: build both from one revision",
        ),
    ],
)
def test_a_generator_that_measures_nothing_fails_the_sample(tmp_path: Path, does: str, complaint: str) -> None:
    with pytest.raises(SampleFailed, match=complaint):
        generator.run(script(tmp_path / "load", does), [], 1.0)


@pytest.mark.parametrize("kind", [[], None])
def test_a_generator_that_is_gone_fails_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: list[str] | None
) -> None:
    if kind is not None:  # As where there is no setpriv.
        monkeypatch.setattr(generator, "die_with_parent", lambda: kind)
    with pytest.raises(SampleFailed, match="the load generator.*No such file or directory"):
        generator.run(tmp_path / "gone", [], 1.0)


def test_a_generator_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "GRACE_S", 0.3)
    before = children()
    with pytest.raises(SampleFailed, match="didn't end within 1 s"):
        generator.run(script(tmp_path / "load", "exec sleep 60"), [], 0.5)
    assert children() == before


def test_a_generator_is_ended_where_the_lab_is(tmp_path: Path) -> None:
    program = script(tmp_path / "load", """echo '{"event":"connected"}'; exec sleep 60""")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    before = children()
    with pytest.raises(KeyboardInterrupt):
        generator.run(program, [], 50.0, interrupt)
    assert children() == before


def test_work_of_processes_that_begin_and_end_meanwhile_counts(make_targets: MakeTargets) -> None:
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": "forks"}))
    program = generator.find()
    # What the last of them did after the window isn't in it: where others have the CPU, that may be most of it in a short one.
    for window_s in (1, 5, 25):
        # The first connection is the one that has no process for each of its answers.
        with Server(arm, "echo", 1) as server, socket.create_connection(("127.0.0.1", server.port)):
            load = ["--connections", "2", "--size", "64", "--warm-up", "0", "--window", str(window_s)]
            load += ["--timeout", "50"]
            words = ["echo", "--address", server.address, *load, "--account", str(server.pid)]
            result = generator.run(program, words, window_s + 60.0)
            used = psutil.Process(server.pid).cpu_times()
        children_s = used.children_user + used.children_system
        if result["server"]["cpu_ns"] / 1e9 > 0.5 * children_s > 0:
            break
    assert result["errors"] == {}
    assert result["server"]["error"] is None
    assert children_s > used.user + used.system
    assert result["server"]["cpu_ns"] / 1e9 > 0.5 * children_s


def test_the_work_of_a_hidden_worker_counts(make_targets: MakeTargets) -> None:
    """It has no parent, session or environment of the server's, and is handed each connection. It works 1 ms for each message."""
    (arm,) = manifest.discover(make_targets(one=1.0, faults={"one": "hands-over"}))
    with Server(arm, "echo", 1) as server:
        verify(server)  # It has answered then.
        worker = worker_of(server)
        assert psutil.Process(worker).environ() == {}
        assert psutil.Process(worker).ppid() == server.guardian
        load = ["--connections", "2", "--size", "64", "--warm-up", "0.1", "--window", "1", "--timeout", "50"]
        words = ["echo", "--address", server.address, *load, *execution.account_words(server)]
        result = generator.run(generator.find(), words, 60.0)
    assert result["errors"] == {}
    assert result["server"]["error"] is None
    assert set(result["server"]["processes"]) == {server.pid, worker}
    assert result["server"]["cpu_ns"] > 0.5e6 * result["operations"] > 0
