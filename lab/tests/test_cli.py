"""The command, by click's runner and as a process of its own."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

import recorded
from conftest import CALL_SOON, FAST, MakeTargets, command_of
from ringlab import cli, guard, history, manifest, preflight, results, session, storage, workloads
from ringlab.report import terminal

# Each starts dozens of processes, which takes its time where a machine has much to do.
pytestmark = [pytest.mark.usefixtures("fake_load"), pytest.mark.timeout(300)]


def ringlab(*words: object) -> Result:
    return CliRunner().invoke(cli.main, [str(word) for word in words])


def unwritable(*, unread: bool) -> IO[bytes]:
    """Return a file that can't be written to: a full disk, or a pipe that nobody reads."""
    if not unread:
        return Path("/dev/full").open("wb")
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "wb")


@pytest.mark.parametrize("command", ["", "run", "compare", "targets", "doctor", "report", "guard"])
def test_help_explains(command: str) -> None:
    found = ringlab(*command.split(), "--help")
    assert found.exit_code == 0
    assert "Usage: " in found.output
    assert "Options:" in found.output


def test_a_run_measures_reports_and_can_be_repeated(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder, output = make_targets(cheap=1.0, dear=1.5), tmp_path / "results"
    found = ringlab(
        "run",
        "echo/framed/1KB/100",
        "rtt/1KB",
        *FAST,
        "--no-system-calls",
        "--targets-folder",
        folder,
        "--output",
        output,
        "--seed",
        7,
    )
    assert found.exit_code == 0, found.output
    assert "echo/framed/1KB/100: fastest: cheap; dear costs " in found.output
    assert str(output / "report.md") in found.output
    result = results.Result.read(output / "result.json")
    assert result.run.complete
    assert result.run.seed == 7
    assert result.environment.cpus > 0
    assert {finding.name for finding in result.preflight} >= {
        "descriptors",
        "load",
        "pace",
        "steal",
        "debugging",
        "load generator",
    }
    text = (output / "report.md").read_text()
    assert "fastest: cheap; dear costs " in text
    assert "</html>" in (output / "report.html").read_text()

    assert result.run.command[:2] == ["ringlab", "run"]
    again = ringlab(*result.run.command[1:], "--output", tmp_path / "again")
    assert again.exit_code == 0, again.output
    repeated = results.Result.read(tmp_path / "again" / "result.json")
    assert [cell.orders for cell in repeated.cells] == [cell.orders for cell in result.cells]
    assert repeated.run.command == result.run.command


def test_a_quick_run_fits_its_time(make_targets: MakeTargets, tmp_path: Path) -> None:
    words = ("run", "echo/framed/1KB/1", "--quick", "--minutes", "0.2", "--targets-folder", make_targets(a=1.0, b=1.0))
    found = ringlab(*words, "--output", tmp_path / "out")
    assert found.exit_code == 0, found.output
    scale = results.Result.read(tmp_path / "out" / "result.json").run.scale
    assert scale.rounds == workloads.SCALES["quick"].rounds
    short = ringlab(
        "run",
        "echo/framed/1KB/1",
        "http/50/closed",
        "--quick",
        "--minutes",
        "0.1",
        *words[-2:],
        "--output",
        tmp_path / "short",
    )
    assert short.exit_code == 0, short.output
    # Less by what it took to look which targets are here.
    assert re.search(r"up to 9 rounds: about [1-6] s", short.output), short.output
    run = results.Result.read(tmp_path / "short" / "result.json").run
    assert run.scale.window_s < workloads.SCALES["quick"].window_s
    again = ringlab(*run.command[1:], "--output", tmp_path / "again")
    assert again.exit_code == 0, again.output
    repeated = results.Result.read(tmp_path / "again" / "result.json").run
    assert repeated.command == run.command
    assert repeated.scale == run.scale


def test_a_quick_run_of_so_many_rounds_keeps_to_the_minutes_that_it_is_given(
    make_targets: MakeTargets, tmp_path: Path
) -> None:
    words = ("run", "echo/framed/1KB/1", "--quick", "--rounds", "900", "--minutes", "0.1", "--no-again")
    found = ringlab(*words, "--targets-folder", make_targets(one=1.0), "--output", tmp_path / "out")
    assert found.exit_code == 0, found.output
    run = results.Result.read(tmp_path / "out" / "result.json").run
    assert run.scale.rounds == 900
    assert any("of 900 rounds, because a quick run has no time for more" in note for note in run.notes)


def test_a_quick_run_leaves_out_lesser_variants_unless_they_are_named(
    make_targets: MakeTargets, tmp_path: Path
) -> None:
    folder = make_targets(a=1.0)
    with (folder / "a" / manifest.FILE_NAME).open("a") as file:
        file.write('[[variants]]\nname = "main"\n[[variants]]\nname = "lesser"\nquick = false\n')
    words = ("run", "echo/framed/1KB/1", "--targets-folder", folder, "--no-again", "--seconds", "0.05")
    for number, (more, arms) in enumerate(
        (
            (("--quick", "--minutes", "0.1"), ["main"]),
            (("--quick", "--minutes", "0.1", "--targets", "a"), ["main", "lesser"]),
            (("--rounds", "1"), ["main", "lesser"]),
        )
    ):
        found = ringlab(*words, *more, "--output", tmp_path / str(number))
        assert found.exit_code == 0, found.output
        result = results.Result.read(tmp_path / str(number) / "result.json")
        assert sorted(result.cells[0].arms) == sorted(arms)
        assert any("leaves out lesser" in note for note in result.run.notes) == (arms == ["main"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "ftp"), "there is no workload or cell 'ftp'; workloads: bind, http, rtt, echo, asgi, wsgi"),
        (("run", "loop/call_soon"), f"there is no workload or cell 'loop/call_soon'; did you mean {CALL_SOON}"),
        (("run", "--targets", "none"), "there is no target 'none'; did you mean one? `ringlab targets` lists all"),
        (("run", "--quick", "--publish"), "--quick and --publish can't be combined"),
        (("run", "--minutes", "5"), "--minutes needs --quick; otherwise use --rounds and --seconds"),
        (("run", "--baseline", "two"), "the baseline two takes no part: there is no target 'two'"),
        (("run", "--rounds", "0"), "Invalid value for '--rounds'"),
        (("compare", "one", "one", "--in", recorded.FILE), "A and B are the same: compare one with one (again)"),
        (("compare", "one", "two"), "there is no target 'two'; `ringlab targets` lists them"),
    ],
)
def test_what_cannot_be_done_is_refused(words: tuple[str, ...], message: str, make_targets: MakeTargets) -> None:
    found = ringlab(*words, "--targets-folder", make_targets(one=1.0))
    assert found.exit_code == 2
    assert message in found.output


def test_a_run_without_targets_here_says_what_they_lack(make_targets: MakeTargets) -> None:
    folder = make_targets(one=1.0)
    path = folder / "one" / "target.toml"
    path.write_text(
        path.read_text() + '[detect]\ncommands = ["false"]\nneeds = "a tool"\ninstall = "apt-get install tool"\n'
    )
    found = ringlab("run", "--targets-folder", folder, "--output", folder / "out")
    assert found.exit_code == 2
    assert not (folder / "out").exists(), "nothing came into it"
    assert "skipped: one: a tool: `false` failed with code 1; install it with: apt-get install tool" in found.output
    assert "none of the targets can run here" in found.output


def test_a_named_target_that_is_missing_is_told_first(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(one=1.0, two=1.0, three=1.0)
    for name in ("two", "three"):
        with (folder / name / manifest.FILE_NAME).open("a") as file:
            file.write('[detect]\ncommands = ["false"]\nneeds = "a tool"\ninstall = "apt-get install tool"\n')
    words = ("run", CALL_SOON, *FAST, "--targets-folder", folder, "--targets")
    found = ringlab(*words, "two,one", "--output", tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert found.stderr.splitlines() == [
        "warning: without two: a tool: `false` failed with code 1; install it with: apt-get install tool"
    ]


def test_a_target_that_cannot_be_built_is_skipped(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(one=1.0, two=1.0)
    path = folder / "one" / "target.toml"
    path.write_text(path.read_text() + '[build]\ncommand = "echo no compiler; exit 1"\nartefact = "{build}/x"\n')
    output = tmp_path / "out"
    found = ringlab("run", CALL_SOON, *FAST, "--targets-folder", folder, "--output", output)
    assert found.exit_code == 0, found.output
    (skipped,) = (arm for arm in results.Result.read(output / "result.json").arms if arm.skipped)
    assert skipped.name == "one"
    assert "no compiler" in skipped.skipped
    assert "it can't be built" in (output / "report.md").read_text()


def test_a_debugging_mode_is_refused(make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    found = ringlab("run", CALL_SOON, "--targets-folder", make_targets(one=1.0))
    assert found.exit_code == 2
    assert "PYTHONASYNCIODEBUG is set" in found.output
    assert "unset PYTHONASYNCIODEBUG" in found.output


@pytest.mark.parametrize("version", ["ringlab-load 0.1.0 (debug)", "ringlab-load 0.1.0 (release)"])
def test_a_debugging_build_of_the_load_generator_is_refused(
    version: str, make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_LOAD_VERSION", version)
    found = ringlab(
        "run", "echo/framed/1KB/1", *FAST, "--targets-folder", make_targets(one=1.0), "--output", tmp_path / "out"
    )
    assert found.exit_code == (2 if "debug" in version else 0)
    assert ("is a debug build" in found.output) == ("debug" in version)


def test_too_many_connections_are_refused(make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.resource, "getrlimit", lambda kind: (256, 1024))
    found = ringlab("run", "http/2000/closed", "--targets-folder", make_targets(one=1.0))
    assert found.exit_code == 2
    assert "2000 connections need 2128 descriptors in one process, but the hard limit is 1024" in found.output
    assert "ulimit -Hn 2128" in found.output


def test_without_a_load_generator_loops_can_be_measured(
    make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RINGLAB_LOAD", "/nonexistent")
    folder = make_targets(one=1.0)
    refused = ringlab("run", "echo", "--targets-folder", folder)
    assert refused.exit_code == 2
    assert "RINGLAB_LOAD is /nonexistent, which can't be run; unset it" in refused.output
    found = ringlab("run", CALL_SOON, *FAST, "--targets-folder", folder, "--output", tmp_path / "out")
    assert found.exit_code == 0, found.output


def test_when_nothing_was_measured_the_status_is_1(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(one=1.0, faults={"one": "no-start"})
    found = ringlab("run", "echo/framed/1KB/1", *FAST, "--targets-folder", folder, "--output", tmp_path / "out")
    assert found.exit_code == 1
    assert "cannot load its library" in found.output


def test_an_arm_that_answers_wrongly_in_every_round_is_the_first_line_and_the_status_is_1(
    make_targets: MakeTargets, tmp_path: Path
) -> None:
    folder, output = make_targets(one=1.0, two=1.0, faults={"two": "nagle"}), tmp_path / "out"
    found = ringlab("run", "echo/framed/1KB/1", *FAST, "--targets-folder", folder, "--output", output)
    assert found.exit_code == 1
    text = "two does not count in echo/framed/1KB/1: nodelay isn't as declared"
    lines = found.output.splitlines()
    assert lines[lines.index("verdicts") - 1].startswith(f"not counted  {text}")
    assert lines[lines.index("verdicts") - 2] == ""
    assert (output / "report.md").read_text().index(f"- **Not counted**: {text}") < 100
    assert f"<strong>Not counted:</strong> {text}" in (output / "report.html").read_text().replace("&#39;", "'")


def test_an_arm_that_fails_in_every_round_is_told_first_and_the_others_count(
    make_targets: MakeTargets, tmp_path: Path
) -> None:
    folder = make_targets(one=1.0, two=1.0, faults={"two": "no-start"})
    found = ringlab("run", "echo/framed/1KB/1", *FAST, "--targets-folder", folder, "--output", tmp_path / "out")
    assert found.exit_code == 0
    assert "\nnot counted  two failed in echo/framed/1KB/1: the server ended" in found.output


def test_targets_and_cells_are_listed(make_targets: MakeTargets) -> None:
    folder = make_targets(one=1.0, two=1.0)
    found = ringlab("targets", "--targets-folder", folder)
    assert found.exit_code == 0
    assert "2 of 2 can run here" in found.output
    one = ringlab("targets", "--targets", "two", "--targets-folder", folder)
    assert "1 of 1 can run here" in one.output
    cells = ringlab("targets", "--cells").output.splitlines()
    assert len(cells) == len(workloads.CELLS)
    assert any(line.startswith("http/50/open-75 ") for line in cells)


def test_doctor_says_what_it_found(make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ringlab("doctor", "--targets-folder", make_targets(one=1.0))
    assert found.exit_code == 0, found.output
    assert "load generator: ringlab-load 9.9 (release)" in found.output
    assert "1 of 1 can run here" in found.output
    monkeypatch.setenv("RINGLAB_LOAD", "/nonexistent")
    broken = ringlab("doctor", "--targets-folder", make_targets(two=1.0))
    assert broken.exit_code == 1
    assert "RINGLAB_LOAD is /nonexistent" in broken.output


def test_two_arms_are_compared_by_a_race_and_within_a_result(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder, output = make_targets(one=1.0, two=0.4, three=3.0), tmp_path / "out"
    cells = ("--workload", CALL_SOON, "--workload", "echo/framed/1KB/1")
    found = ringlab("compare", "one", "two", *cells, *FAST, "--targets-folder", folder, "--output", output)
    assert found.exit_code == 0, found.output
    result = results.Result.read(output / "result.json")
    assert result.cells[0].arms == ["one", "two", "one (again)"]
    assert result.cells[0].analysis.groups[0].baseline == "one"
    assert re.search(r"two is better than one in time per operation: (59|60)\.\d% less \(", found.output)
    within = ringlab("compare", "two", "one", "--in", output / "result.json")
    assert within.exit_code == 0
    # The fake's figures differ by up to 0.4% from process to process.
    assert re.search(r"one is worse than two in time per operation: 2\.(49|50|51) times \(", within.output)
    assert within.output.count("echo/framed/1KB/1: ") == 4
    assert ringlab("compare", "two", "one", "--in", output).output == within.output
    nothing = ringlab("compare", "two", "one", "--in", output.parent)
    assert nothing.exit_code == 2
    assert f"{output.parent / 'result.json'}" in nothing.output
    narrowed = ringlab("compare", "one", "two", "--in", output / "result.json", "--workload", "loops").output
    assert f"{CALL_SOON}: two is better than one" in narrowed
    assert "echo" not in narrowed
    refused = ringlab("compare", "two", "three", "--in", output / "result.json")
    assert refused.exit_code == 2
    assert "three took no part in" in refused.output


def test_an_arm_ties_with_itself(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(one=1.0, two=0.4)
    words = ("compare", "one", "one", "--workload", CALL_SOON, *FAST, "--targets-folder", folder)
    found = ringlab(*words, "--output", tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert "one (again) and one tie in time per operation: they differ by less than" in found.output
    (cell,) = results.Result.read(tmp_path / "out" / "result.json").cells
    assert cell.analysis.groups[0].verdict.kind == "tie"


@pytest.mark.parametrize("kind", cli.FORMATS)
def test_a_result_is_reported(kind: str) -> None:
    found = ringlab("report", recorded.FILE, "--format", kind)
    assert found.exit_code == 0, found.output
    assert "echo/framed/1KB/100" in found.output


def test_every_verdict_and_setting_is_in_the_report() -> None:
    result = results.Result.read(recorded.FILE)
    for kind in ("terminal", "markdown"):
        text = " ".join(ringlab("report", recorded.FILE, "--format", kind).output.split())
        for cell in result.cells:
            assert cell.analysis.groups[0].verdict.sentence in text
        assert "install it with: apt-get install" in text
        assert result.environment.cpu_model in text
    assert "ringlab run bind/listen/1" in ringlab("report", recorded.FILE, "--format", "markdown").output


def test_compare_takes_two_arms_and_not_their_targets(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(a=1.0)
    with (folder / "a" / manifest.FILE_NAME).open("a") as file:
        file.write('[[variants]]\nname = "a"\n[[variants]]\nname = "another"\n')
    words = ("--workload", "echo/framed/1KB/1", *FAST, "--no-system-calls", "--targets-folder", folder)
    found = ringlab("compare", "a", "a", *words, "--output", tmp_path / "out")
    assert found.exit_code == 0, found.output
    result = results.Result.read(tmp_path / "out" / "result.json")
    assert result.cells[0].arms == ["a", "a (again)"]
    repeated = ringlab(*result.run.command[1:], "--output", tmp_path / "again")
    assert repeated.exit_code == 0, repeated.output
    assert results.Result.read(tmp_path / "again" / "result.json").cells[0].arms == ["a", "a (again)"]


def test_what_takes_long_to_import_is_not_imported_by_every_command() -> None:
    code = "import sys; from ringlab import cli; print({'matplotlib', 'jinja2', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("{}")
    found = ringlab("report", path)
    assert found.exit_code == 2
    assert "is not a result of ringlab: at $: 'run' is a required property" in found.output


def test_ctrl_c_keeps_what_was_measured_and_a_run_goes_on(make_targets: MakeTargets, tmp_path: Path) -> None:
    """As a real process: interrupted while it waits for a load that hangs, and resumed without that.

    The folder's name isn't UTF-8.
    """
    folder, output, marker = make_targets(one=1.0, stuck=9.0), tmp_path / "out", tmp_path / "hangs"
    folder = folder.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    words = ("run", "bind/listen/1", "echo/framed/1KB/1", *FAST, "--targets-folder", folder, "--output", output)
    environment = dict(os.environ) | {"FAKE_LOAD_HANG": str(marker)}
    process = subprocess.Popen(
        command_of(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    while not marker.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == session.EXIT_INTERRUPTED, printed
    assert "what was measured is kept" in printed
    kept = results.Result.read(output / "result.json")
    assert kept.run.interrupted
    assert len(kept.cells[0].samples) == 9
    assert "bind/listen/1" in (output / "report.md").read_text()
    assert f"ringlab run --resume {output / 'result.json'}" in printed

    resumed = subprocess.run(
        command_of("run", "--resume", output / "result.json"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    whole = results.Result.read(output / "result.json")
    assert whole.run.complete
    assert not whole.run.interrupted
    assert [len(cell.samples) for cell in whole.cells] == [9, 9]
    refused = ringlab("run", "--resume", output / "result.json", "--targets-folder", folder)
    assert refused.exit_code == 2
    assert "is complete, there is nothing to resume" in refused.output


def test_paths_of_a_result_are_those_that_were_given(tmp_path: Path) -> None:
    """Whatever bytes they have, and where they look like such a path that is written out."""
    made = results.Result.read(recorded.FILE)
    plain = tmp_path / "caf\\udce9"
    plain.touch()
    given = ["--goals", f"{tmp_path}/{os.fsdecode(bytes(range(0x80, 0x100)))}", "--targets-folder", str(plain)]
    made.run.command = given
    made.write(tmp_path / "result.json")
    assert session.as_given(results.Result.read(tmp_path / "result.json").run.command) == given


def test_a_quick_run_that_goes_on_has_no_more_time_than_it_had(
    make_targets: MakeTargets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "BUDGET_S_MIN", 0.01)
    folder, path = make_targets(one=1.0), tmp_path / "out" / "result.json"
    words = ("--quick", "--minutes", "10", "--seconds", "0.05", "--targets-folder", folder, "--output", path.parent)
    assert ringlab("run", CALL_SOON, *words).exit_code == 0
    content = json.loads(path.read_text())
    begun, ended = "2026-11-21T10:00:00+00:00", "2026-11-21T10:10:00+00:00"
    content["run"] |= {"complete": False, "interrupted": True, "begun": begun, "ended": ended}
    content["cells"][0] |= {"samples": [], "orders": []}
    path.write_text(json.dumps(content))
    found = ringlab("run", "--resume", path)
    assert found.exit_code == 0, found.output
    assert "up to 9 rounds" in found.output
    assert f"{CALL_SOON} ended after 3 of 9 rounds, because a quick run has no time for more" in found.output


def write_nowhere_in(folder: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a disk be full `times` times, from the third time on that a result is written into a folder."""
    write, calls = results.Result.write, iter(range(1000))

    def written(result: results.Result, path: Path) -> None:
        if path.parent == folder and 2 <= next(calls) < 2 + times:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(result, path)

    monkeypatch.setattr(results.Result, "write", written)


@pytest.mark.parametrize("times", [1, 1000])
def test_a_full_disk_loses_nothing(
    times: int, make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    write_nowhere_in(output, times, monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ("run", CALL_SOON, "rtt/64B", "echo/framed/1KB/1", *FAST, "--no-system-calls", "--output", output)
    found = ringlab(*words, "--targets-folder", make_targets(one=1.0))
    assert f"{output / 'result.json'} can't be written: No space left on device; it is tried again" in found.output
    path = output / "result.json"
    if times == 1:
        assert found.exit_code == 0, found.output
    else:
        assert found.exit_code == 2, found.output
        (path,) = tmp_path.glob("ringlab-*/result.json")
        assert f"the result is in {path}" in found.output
    kept = results.Result.read(path)
    assert kept.run.complete
    assert [len(cell.samples) for cell in kept.cells] == [6, 6, 6]


def test_a_result_that_can_be_written_nowhere_is_told_to_be_lost(
    make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = tmp_path / "out"
    write_nowhere_in(output, 1000, monkeypatch)
    monkeypatch.setattr(tempfile, "mkdtemp", full)
    words = ("run", CALL_SOON, *FAST, "--no-system-calls", "--output", output)
    found = ringlab(*words, "--targets-folder", make_targets(one=1.0))
    assert found.exit_code == 2, found.output
    why = f"{output / 'result.json'} can't be written: No space left on device; nor can a folder for temporary files: "
    assert why in found.stderr
    assert "No space left on device; what was measured is lost" in found.stderr


def test_a_result_is_kept_elsewhere_where_nothing_can_be_printed_either(
    make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = tmp_path / "out"
    write_nowhere_in(output, 1000, monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(terminal, "print_summary", full)
    words = ("run", CALL_SOON, *FAST, "--no-system-calls", "--output", output)
    found = ringlab(*words, "--targets-folder", make_targets(one=1.0))
    assert found.exit_code == 2, found.output
    (path,) = tmp_path.glob("ringlab-*/result.json")
    assert f"the result is in {path}" in found.output


def test_reports_that_cannot_be_written_leave_the_result(make_targets: MakeTargets, tmp_path: Path) -> None:
    output = tmp_path / "out"
    (output / "report.md").mkdir(parents=True)
    found = ringlab("run", CALL_SOON, *FAST, "--targets-folder", make_targets(one=1.0), "--output", output)
    assert found.exit_code == 2
    assert "the reports can't be written: " in found.output
    assert f"`ringlab report {output / 'result.json'}` shows it" in found.output
    assert results.Result.read(output / "result.json").run.complete


IN_ONE_PROCESS = """
import json, sys
from ringlab.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
"""A program that runs several commands: most of what a short one costs is the start of Python, and imports."""


def test_names_that_are_no_text_are_written_out(
    make_targets: MakeTargets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of folders, in environment variables, and in the output of all commands, whose stdout takes nothing but UTF-8."""

    def finish(command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def run(*words: object) -> str:
        return finish(command_of(*words))

    folder = make_targets(one=1.0)
    with (folder / "one" / manifest.FILE_NAME).open("a") as file:
        file.write('[build]\ncommand = "mkdir -p {build}; touch {build}/made"\nartefact = "{build}/made"\n')
    name = os.fsdecode(b"caf\xe9")
    folder = folder.rename(tmp_path / name)
    monkeypatch.setenv("MALLOC_ARENA_MAX", name)
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
    runs = tmp_path / f"{name}-runs"
    for number in "12":
        output = runs / f"{name}-{number}"
        words = (CALL_SOON, *FAST, "--no-again", "--no-system-calls", "--targets-folder", folder, "--output", output)
        assert "caf\\udce9-runs" in run("run", *words)
        assert "caf\\udce9" in (output / "report.md").read_text()
    result = results.Result.read(output / storage.RESULT_FILE)
    assert result.environment.variables["MALLOC_ARENA_MAX"] == "caf\\udce9"
    assert f"{tmp_path}/caf\\udce9" in result.run.command
    of_kind = [["report", str(output), "--format", kind] for kind in cli.FORMATS]
    finish([sys.executable, "-c", IN_ONE_PROCESS, json.dumps(of_kind)])
    assert "caf\\udce9-2" in run("report", output, "--format", "html")
    of_both = ("--control", "none", "--csv", tmp_path / f"{name}.csv")
    assert "caf\\udce9-2" in run("compare", runs / f"{name}-1", output, *of_both)
    run("trend", runs)
    assert "caf\\udce9-2" in (runs / history.TREND_FILE).read_text()


def test_a_broken_manifest_stops_only_its_own_target(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder = make_targets(one=1.0)
    broken = folder / "broken" / manifest.FILE_NAME
    broken.parent.mkdir()
    for text in (f"name = {'1' * 5000}", f"name = 0x{'f' * 5000}", f"name = {'[' * 20000}", "name = ["):
        broken.write_text(text)
        found = ringlab("targets", "--targets-folder", folder)
        assert found.exit_code == 0, found.output[:1000]
        assert f"warning: the target broken is left out: {broken} is not valid TOML: " in found.output
    words = ("--targets-folder", folder)
    found = ringlab("run", CALL_SOON, *FAST, *words, "--output", tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert f"warning: the target broken is left out: {broken} is not valid TOML: " in found.output
    assert ringlab("targets", *words).exit_code == 0
    assert "target broken: " in " ".join(ringlab("doctor", *words).output.split())
    for command in (
        ("run", "--targets", "broken"),
        ("targets", "--targets", "one,broken"),
        ("compare", "one", "broken-x"),
    ):
        refused = ringlab(*command, *words)
        assert refused.exit_code == 2, refused.output
        assert f"{broken} is not valid TOML" in refused.output
    (folder / "one" / manifest.FILE_NAME).unlink()
    assert "is not valid TOML" in ringlab("targets", *words).output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--targets", "ocn"), "there is no target 'ocn'; did you mean one?"),
        (
            ("run", "--baseline", "onee"),
            "the baseline onee takes no part: there is no target 'onee'; did you mean one?",
        ),
        (
            ("run", "echo/framed/1K/100"),
            "there is no workload or cell 'echo/framed/1K/100'; did you mean echo/framed/1KB/100",
        ),
        (("compare", "one", "ones"), "there is no target 'ones'; did you mean one?"),
    ],
)
def test_the_nearest_name_is_offered(words: tuple[str, ...], message: str, make_targets: MakeTargets) -> None:
    found = ringlab(*words, "--targets-folder", make_targets(one=1.0))
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())


def test_the_estimate_of_the_time_is_of_what_samples_took(
    make_targets: MakeTargets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "echo/framed/1KB/100", *FAST, "--targets-folder", make_targets(one=1.0), "--no-system-calls")
    assert ringlab(*words, "--output", tmp_path / "first").exit_code == 0
    (key,) = storage.read_overheads()
    assert key == "one echo 100"
    storage.write_overheads({key: 100.0})
    found = ringlab(*words, "--output", tmp_path / "second")
    assert "3 rounds: about 10 min" in found.output
    storage.overheads_file().write_text('{"one echo 100": "x"}')
    assert storage.read_overheads() == {}


def test_a_result_is_not_overwritten(make_targets: MakeTargets, tmp_path: Path) -> None:
    words = ("run", CALL_SOON, *FAST, "--targets-folder", make_targets(one=1.0), "--output", tmp_path / "out")
    assert ringlab(*words).exit_code == 0
    before = (tmp_path / "out" / "result.json").read_text()
    again = ringlab(*words)
    assert again.exit_code == 2
    assert "result.json would be overwritten; choose another folder with --output" in again.output
    assert (tmp_path / "out" / "result.json").read_text() == before


def test_a_folder_that_cannot_be_written_to_is_refused(make_targets: MakeTargets, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = tmp_path / "file" / "out"
    found = ringlab("run", CALL_SOON, *FAST, "--targets-folder", make_targets(one=1.0), "--output", output)
    assert found.exit_code == 2
    assert f"results can't be written to {output}: Not a directory; choose another folder with --output" in found.output


def test_what_differs_from_the_usual_is_repeated(make_targets: MakeTargets, tmp_path: Path) -> None:
    words = ("run", CALL_SOON, *FAST, "--targets-folder", make_targets(one=1.0))
    for number, (flags, expected) in enumerate(
        {
            (): [],
            ("--no-again", "--no-system-calls"): ["--no-again", "--no-system-calls"],
            ("--quick", "--no-system-calls"): [],
            ("--quick", "--system-calls"): ["--system-calls"],
        }.items()
    ):
        output = tmp_path / str(number)
        assert ringlab(*words, *flags, "--output", output).exit_code == 0
        command = results.Result.read(output / "result.json").run.command
        assert [word for word in command if "again" in word or "calls" in word] == expected


@pytest.mark.parametrize(
    ("words", "name", "message"),
    [
        (("--rounds", "30"), "", "--resume continues the run with its own options: leave out --rounds"),
        (("echo",), "", "leave out what"),
        ((), "cpu_model", "this machine isn't the one of "),
    ],
)
def test_what_cannot_go_on_is_refused(
    words: tuple[str, ...], name: str, message: str, make_targets: MakeTargets, tmp_path: Path
) -> None:
    folder, path = make_targets(one=1.0), tmp_path / "out" / "result.json"
    ringlab("run", CALL_SOON, *FAST, "--targets-folder", folder, "--output", path.parent)
    result = results.Result.read(path)
    result.run.complete = False
    if name:
        setattr(result.environment, name, "another")
    result.write(path)
    found = ringlab("run", "--resume", path, *words, "--targets-folder", folder)
    assert found.exit_code == 2, found.output
    assert message in found.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seconds", "nan"), "Invalid value for '--seconds': nan is not a number"),
        (("--seed", "-1"), "Invalid value for '--seed': -1 is not in the range"),
        (("--seed", str(1 << 64)), "Invalid value for '--seed'"),
        (("--targets", ","), "--targets ',' matches nothing; `ringlab targets` lists the targets"),
    ],
)
def test_words_without_sense_are_refused(
    words: tuple[str, ...], message: str, make_targets: MakeTargets, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    found = ringlab("run", CALL_SOON, *words, "--targets-folder", make_targets(one=1.0), "--output", output)
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert not output.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": [{"name": "echo/gone"}]}, "this ringlab has no cell echo/gone; start a new run"),
        ({"cells": [{"name": "loop/call_soon"}]}, "this ringlab has no cell loop/call_soon; start a new run"),
        ({"cells": []}, "has no cells; start a new run"),
        ({"run": {"begun": "yesterday"}}, "isn't a result that ringlab wrote: Invalid isoformat string: 'yesterday'"),
        ({"run": {"begun": "9999-12-31T23:59:59-01:00"}}, "isn't a result that ringlab wrote: date value out of range"),
        ({"run": {"command": ["--workers", "many"]}}, "isn't a result that ringlab wrote: invalid literal for int()"),
    ],
)
def test_what_is_no_longer_known_cannot_go_on(
    change: dict[str, Any], message: str, make_targets: MakeTargets, tmp_path: Path
) -> None:
    folder, path = make_targets(one=1.0), tmp_path / "out" / "result.json"
    ringlab("run", CALL_SOON, *FAST, "--targets-folder", folder, "--output", path.parent)
    content = json.loads(path.read_text())
    content["run"] |= {"complete": False} | change.get("run", {})
    if "cells" in change:
        content["cells"] = [content["cells"][0] | each for each in change["cells"]]
    path.write_text(json.dumps(content))
    found = ringlab("run", "--resume", path, "--targets-folder", folder)
    assert found.exit_code == 2, found.output
    assert f"{path}" in found.output
    assert message in found.output


def test_a_damaged_histogram_is_named(tmp_path: Path) -> None:
    content = json.loads(recorded.FILE.read_text())
    cell = next(cell for cell in content["cells"] if cell["name"] == "rtt/1KB")
    for sample in cell["samples"]:
        sample["histograms"] = dict.fromkeys(sample["histograms"], "junk")
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    found = ringlab("compare", "go", "c-epoll", "--in", path, "--workload", "rtt")
    assert found.exit_code == 2, found.output
    assert "rtt/1KB: a histogram of " in found.output
    assert "can't be decoded" in found.output


def test_a_full_disk_below_what_is_printed_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command_of("report", recorded.FILE), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "Error: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("--help",), ("guard", "--help")])
def test_help_that_cannot_be_printed_is_an_error(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command_of(*words), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "Error: No space left on device\n")


@pytest.mark.parametrize("error", [RuntimeError, EOFError, MemoryError, RecursionError])
def test_what_nobody_has_foreseen_is_no_verdict(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error("unforeseen")

    monkeypatch.setattr(guard, "run", fail)
    found = ringlab("guard", "--base", "main")
    assert found.exit_code == 2, found.output
    assert f"{error.__name__}: unforeseen" in found.output


def test_a_module_that_cannot_be_loaded_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "psutil.py").write_text("raise ImportError('it is broken')\n")
    environment = dict(os.environ) | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command_of("targets"), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "ImportError: it is broken" in done.stderr


@pytest.mark.parametrize("words", ["ringlab --help", "ringlab targets"])
def test_only_what_needs_them_waits_for_packages_that_take_long_to_import(
    words: str, make_targets: MakeTargets, tmp_path: Path
) -> None:
    for name in ("scipy", "numpy", "jsonschema", "jinja2"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is imported too early')\n")
    environment = dict(os.environ) | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", *words.split()]
    if words == "ringlab targets":
        # Not ringlab's own: to find out whether those can run takes many programs.
        command += ["--targets-folder", str(make_targets(one=1.0))]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unread", [False, True], ids=["full", "unread"])
@pytest.mark.parametrize(
    ("words", "module"),
    [
        (("guard", "--base", "main", "--rounds", "0"), ""),
        (("guard", "--base", "main", "--repository", "."), ""),
        (
            ("guard", "--base", "main"),
            "from ringlab import guard\ndef run(*a, **b): raise RuntimeError\nguard.run = run",
        ),
        (("guard", "--base", "main"), "import ringlab\ndel ringlab.Refused"),
    ],
    ids=["usage", "refused", "unforeseen", "not loaded"],
)
def test_an_error_that_cannot_be_printed_is_no_verdict(
    words: tuple[str, ...], module: str, unread: bool, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(module)
    environment = dict(os.environ) | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    with unwritable(unread=unread) as file:
        done = subprocess.run(command_of(*words), stdout=file, stderr=file, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 2


def test_an_interrupt_that_cannot_be_told_is_one(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder, marker = make_targets(one=1.0), tmp_path / "builds"
    with (folder / "one" / manifest.FILE_NAME).open("a") as file:
        file.write(f'[build]\ncommand = "touch {marker}; sleep 600"\nartefact = "{{build}}/made"\n')
    words = ("run", CALL_SOON, *FAST, "--targets-folder", folder, "--output", tmp_path / "out")
    with unwritable(unread=False) as full:
        process = subprocess.Popen(command_of(*words), stdout=subprocess.DEVNULL, stderr=full)
    while not marker.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=100) == session.EXIT_INTERRUPTED


def test_a_run_that_nobody_reads_goes_on(make_targets: MakeTargets, tmp_path: Path) -> None:
    folder, output = make_targets(one=1.0), tmp_path / "out"
    words = ("run", CALL_SOON, "echo/framed/1KB/1", *FAST, "--targets-folder", folder, "--output", output)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(command_of(*words), stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert results.Result.read(output / "result.json").run.complete
    assert (output / "report.html").exists()


def test_what_nobody_reads_ends_as_by_the_kernel_signal() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            command_of("targets", "--cells"), stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_ctrl_c_before_it_has_begun_ends_it_quietly(tmp_path: Path) -> None:
    """While its modules are loaded, one of which interrupts here."""
    (tmp_path / "psutil.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = dict(os.environ) | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command_of("targets"), capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


@pytest.mark.parametrize("workload", manifest.APPLICATIONS)
def test_a_quick_run_has_no_servers_of_applications_unless_they_are_asked_for(workload: str) -> None:
    def chosen(asked: list[str], scale: workloads.ScaleName) -> set[str]:
        return {cell.workload for cell in workloads.choose(asked, scale)}

    assert workload not in chosen([], "quick")
    assert workload in chosen([], "normal")
    assert chosen([workload], "quick") == {workload}


def test_a_quick_run_has_cells_of_other_scales_if_they_are_named() -> None:
    assert [cell.name for cell in workloads.choose(["asgi/idle*"], "quick")] == [
        "asgi/idle/10000",
        "asgi/idle-tls/2000",
    ]
    assert [cell.name for cell in workloads.choose(["wsgi/file/*"], "quick")] == ["wsgi/file/1MB/50"]
