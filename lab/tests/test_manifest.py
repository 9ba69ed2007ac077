"""The contents of target.toml, what is wrong with one that can't be used, and how targets are found and built."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ringlab import manifest, preflight, presets, selection, workloads
from ringlab.tables import WrongFile

GOOD = """
name = "good"
language = "C"
title = "good"
[detect]
commands = ["echo version 7"]
needs = "a tool"
install = "apt-get install tool"
[build]
command = "cp {target}/source {build}/server"
artefact = "{build}/server"
[run]
echo = "{build}/server echo --port {port} --workers {workers} 'two words'"
bind = "{build}/server bind --mode {mode} --count {count} --concurrent {concurrent}"
environment = { ONE = "1", TWO = "{target}" }
warm_up_s = 2
[declares]
workers = 1
nodelay = true
bind_modes = ["listen"]
[[variants]]
name = "good-one"
[[variants]]
name = "good-two"
title = "the second"
arguments = ["--flag", "{target}"]
environment = { TWO = "2" }
workloads = ["rtt"]
declares = { nodelay = false }
detect = { commands = ["false"], needs = "another tool", install = "apt-get install another" }
"""
REPOSITORY_TARGETS = Path(__file__).resolve().parent.parent / "targets"


def write(tmp_path: Path, text: str, name: str = "good") -> Path:
    folder = tmp_path / "targets" / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / manifest.FILE_NAME
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str) -> list[manifest.Arm]:
    return manifest.read_target(write(tmp_path, text), tmp_path / "build")


def test_variants_are_arms(tmp_path: Path) -> None:
    one, two = read(tmp_path, GOOD)
    assert (one.name, one.title, one.workloads) == ("good-one", "good", ("bind", "rtt", "echo"))
    assert (two.name, two.title, two.workloads) == ("good-two", "the second", ("rtt",))
    assert (one.declares.nodelay, two.declares.nodelay, two.declares.workers) == (True, False, 1)
    build, folder = tmp_path / "build" / "good", tmp_path / "targets" / "good"
    assert one.command("echo", port=5, workers=2) == [
        f"{build}/server", "echo", "--port", "5", "--workers", "2", "two words",
    ]  # fmt: skip
    assert two.command("echo", port=0, workers=1)[-2:] == ["--flag", str(folder)]
    assert (one.warm_up_s, two.warm_up_s) == (2.0, 2.0)
    assert two.child_environment()["ONE"] == "1"
    assert two.child_environment()["TWO"] == "2"
    assert one.child_environment()["TWO"] == str(folder)


def test_a_cell_is_for_those_who_serve_it(tmp_path: Path) -> None:
    one, two = read(tmp_path, GOOD)
    served = {name for name, plan in workloads.BY_NAME.items() if plan.served_by(one)}
    assert "bind/listen/1" in served
    assert "bind/bind/1" not in served, "it can't bind without listening"
    assert "http/50/closed" not in served
    assert {plan.workload for plan in workloads.CELLS if plan.served_by(two)} == {"rtt"}


def test_what_has_no_load_is_timed_for_100_ms_at_least() -> None:
    plan = workloads.BY_NAME["bind/listen/1"]
    for scale in workloads.SCALES.values():
        assert plan.window_s(scale) == plan.windows_s[scale.name]
        assert plan.window_s(replace(scale, window_s=0.05)) == 0.1


def test_a_target_without_variants_is_an_arm(tmp_path: Path) -> None:
    (arm,) = read(tmp_path, GOOD.partition("[[variants]]")[0])
    assert arm.name == "good"
    assert arm.again().name == "good (again)"
    assert arm.again().repeats == "good"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "good"', "", "name is missing; needed here: name, language, title"),
        ('name = "good"', 'name = "bad"', "name is 'bad', but the folder is called 'good'"),
        ('language = "C"', "language = 3", "language must be a string, not 3"),
        ("[build]\ncommand", "[build]\ncomand", "build.comand is not known; did you mean command?"),
        ("[detect]", "[detects]", "detects is not known; did you mean detect?"),
        ('install = "apt-get install tool"', "", "detect.install is missing: it tells users who lack the tool"),
        ("--port {port}", "--port {prot}", "run.echo uses {prot}, which is not a placeholder here; known: {build}, "),
        ("[detect]", '[detect]\npython = "python3.14"', "detect.python must be a version like 3.14, not 'python3.14'"),
        ("--port {port}", "--port {port", "run.echo has an unbalanced brace"),
        ("'two words'", "'two words", "run.echo can't be split into words: No closing quotation"),
        ("workers = 1", "workers = 0", "declares.workers must be at least 1 and at most 1,000,000,000, not 0"),
        ("workers = 1", "workers = true", "declares.workers must be a whole number, not True"),
        ("nodelay = true", "nodelay = 1", "declares.nodelay must be true or false, not 1"),
        ("nodelay = true", 'parser = "fast"', "declares.parser must be one of canned, real, none, not 'fast'"),
        (
            'bind_modes = ["listen"]',
            'bind_modes = ["open"]',
            "declares.bind_modes[0] must be one of bind, listen, accept, not 'open'",
        ),
        (
            'workloads = ["rtt"]',
            'workloads = ["http"]',
            "variants['good-two'].workloads must name some of bind, rtt, echo, as run serves them, not http",
        ),
        (
            'workloads = ["rtt"]',
            'workloads = ["ftp"]',
            "variants['good-two'].workloads must name some of bind, rtt, echo, as run serves them, not ftp",
        ),
        ('name = "good-two"', 'name = "good two"', "variants['good two'].name is 'good two'; use letters, digits"),
        ('artefact = "{build}/server"', "", "build.artefact is missing: the file that the command makes"),
        ('environment = { ONE = "1"', "environment = { ONE = 1", "run.environment.ONE must be a string, not 1"),
        (
            "[declares]",
            '[stop]\nsignal = "SIGHUP"\n[declares]',
            "stop.signal must be one of SIGTERM, SIGINT, SIGKILL, not 'SIGHUP'",
        ),
        ("[declares]", '[stop]\nexit_codes = ["0"]\n[declares]', "stop.exit_codes[0] must be a whole number, not '0'"),
        ("[declares]", '[ready]\ntimeout_s = "1"\n[declares]', "ready.timeout_s must be a number, not '1'"),
        (
            "[declares]",
            "[ready]\ntimeout_s = nan\n[declares]",
            "ready.timeout_s must be at least 0.1 and at most 1,000,000,000, not nan",
        ),
        (
            "[declares]",
            "[stop]\ntimeout_s = inf\n[declares]",
            "stop.timeout_s must be at least 0.1 and at most 1,000,000,000, not inf",
        ),
        ("warm_up_s = 2", "warm_up_s = -1", "run.warm_up_s must be at least 0 and at most 1,000,000,000, not -1.0"),
        (
            'workloads = ["rtt"]',
            "workloads = []",
            "variants['good-two'].workloads must name some of bind, rtt, echo, as run serves them, not none",
        ),
        ("--port {port}", "--port {port:{x}}", "run.echo has a format after {port}, which takes none"),
        ("--port {port}", "--port {port!r}", "run.echo has a format after {port}, which takes none"),
        ('name = "good"', 'name = "very good"', "name is 'very good'; use letters, digits and . _ + -, without spaces"),
        ("[run]", "[run", "is not valid TOML"),
    ],
)
def test_an_error_names_file_key_and_remedy(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(WrongFile) as caught:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert message in str(caught.value)
    assert str(tmp_path / "targets" / "good" / "target.toml") in str(caught.value)


@pytest.mark.parametrize("number", [str(1 << 63), f"0x{'f' * 5000}"])
def test_a_number_can_be_too_large(number: str, tmp_path: Path) -> None:
    with pytest.raises(WrongFile, match=r"target\.toml: declares.workers "):
        read(tmp_path, GOOD.replace("workers = 1", f"workers = {number}"))


def test_a_target_without_commands_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WrongFile, match="has no command; add one of echo, http, discard, bind, asgi, wsgi"):
        read(tmp_path, 'name = "good"\nlanguage = "C"\ntitle = "t"\n')


def test_two_arms_of_one_name_are_an_error(tmp_path: Path) -> None:
    text = 'name = "{}"\nlanguage = "C"\ntitle = "t"\n[run]\necho = "true"\n[[variants]]\nname = "same"\n'
    for name in ("one", "two"):
        write(tmp_path, text.format(name), name)
    with pytest.raises(WrongFile, match="the arm same is in .*one/target.toml as well; names must differ"):
        manifest.discover(tmp_path / "targets")


def test_a_folder_without_targets_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WrongFile, match="say where they are with --targets-folder or RINGLAB_TARGETS"):
        manifest.discover(tmp_path)


def test_what_is_missing_is_told_with_its_remedy(tmp_path: Path) -> None:
    one, two = read(tmp_path, GOOD)
    assert manifest.detect_all(one) == manifest.Presence(version="version 7")
    found = manifest.detect_all(two)
    assert (found.skipped, found.install) == ("another tool: `false` failed with code 1", "apt-get install another")


def test_a_build_runs_when_something_has_changed(tmp_path: Path) -> None:
    arm = read(tmp_path, GOOD)[0]
    source, artefact = arm.folder / "source", arm.build_folder / "server"
    source.write_text("1")
    assert not manifest.is_built(arm)
    manifest.build(arm)
    assert manifest.is_built(arm)
    assert artefact.read_text() == "1"
    artefact.write_text("left as it is")
    manifest.build(arm)
    assert artefact.read_text() == "left as it is"
    source.write_text("2")
    future = artefact.stat().st_mtime + 10
    os.utime(source, (future, future))
    assert not manifest.is_built(arm)
    manifest.build(arm)
    assert artefact.read_text() == "2"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo no compiler >&2; exit 3", "failed with code 3: no compiler; all of its output: "),
        ("true", "didn't make .*/build/good/server"),
    ],
)
def test_a_failed_build_says_why(command: str, message: str, tmp_path: Path) -> None:
    arm = read(tmp_path, GOOD.replace("cp {target}/source {build}/server", command))[0]
    with pytest.raises(manifest.BuildFailed, match=message):
        manifest.build(arm)
    assert (arm.build_folder / manifest.LOG_NAME).exists()


def test_a_build_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    arm = read(tmp_path, GOOD.replace("cp {target}/source {build}/server", "sleep 600"))[0]
    with pytest.raises(manifest.BuildFailed, match="`sleep 600` didn't end within 0 s; its output: "):
        manifest.build(arm, None, 0.05)


def test_a_build_that_does_not_stop_printing_is_ended(tmp_path: Path) -> None:
    arm = read(tmp_path, GOOD.replace("cp {target}/source {build}/server", "while echo more; do :; done"))[0]
    with pytest.raises(manifest.BuildFailed, match="didn't end within 0 s; its output: "):
        manifest.build(arm, None, 0.2)


def test_a_build_ends_what_it_leaves_running(tmp_path: Path) -> None:
    """A daemon of a build tool keeps the output open, and would take CPU from what is measured."""
    command = "sleep 600 & echo $! >{build}/pid; cp {target}/source {build}/server"
    arm = read(tmp_path, GOOD.replace("cp {target}/source {build}/server", command))[0]
    (arm.folder / "source").write_text("1")
    manifest.build(arm)
    assert manifest.is_built(arm)
    with pytest.raises(ProcessLookupError):
        os.kill(int((arm.build_folder / "pid").read_text()), 0)


def test_the_progress_of_a_build_is_told_and_its_log_is_readable(tmp_path: Path) -> None:
    command = "{python} say.py; cp {target}/source {build}/server"
    arm = read(tmp_path, GOOD.replace("cp {target}/source {build}/server", command))[0]
    (arm.folder / "source").write_text("1")
    # As cargo writes it, in pieces of any length.
    (arm.folder / "say.py").write_text(r"""
import os
said = b"\33[1m   Compiling\33[0m one v1\n    Building [=>  ] 1/2: two\r    Building [==> ] 2/2: two\r\33[K    Finished\n"
for begin in range(0, len(said), 7):
    os.write(1, said[begin:begin + 7])
""")
    told: list[str] = []
    manifest.build(arm, tell=told.append)
    pieces = ("Compiling one v1", "Building [=>  ] 1/2: two", "Building [==> ] 2/2: two", "Finished")
    assert told[0] == f"building good: {arm.shell(arm.build.command)}"
    assert told[-1] == "building good: Finished"
    assert set(told[1:]) <= {f"building good: {piece}" for piece in pieces}
    lines = (arm.build_folder / manifest.LOG_NAME).read_text().splitlines()
    assert lines == [f"$ {arm.shell(arm.build.command)}", "   Compiling one v1", "    Finished"]


def test_what_cargo_says_about_its_progress_is_told(tmp_path: Path) -> None:
    arm = read(tmp_path, GOOD.replace("cp {target}/source {build}/server", "env | sort >{build}/server"))[0]
    manifest.build(arm)
    environment = (arm.build_folder / "server").read_text()
    assert "CARGO_TERM_PROGRESS_WHEN=always\nCARGO_TERM_PROGRESS_WIDTH=" in environment


def test_each_rust_target_is_built_alone_and_where_it_is_asked_for(tmp_path: Path) -> None:
    arms = [arm for arm in manifest.discover(REPOSITORY_TARGETS, tmp_path) if arm.language == "Rust"]
    assert len({arm.target for arm in arms}) == 5
    for arm in arms:
        words = arm.build.command.split()
        assert words[words.index("--package") + 1] == f"target-{arm.target}"
        artefact = Path(arm.expand(arm.build.artefact)).parent / arm.target
        assert artefact.resolve() == tmp_path / "cargo" / "release" / arm.target
        assert f"--target-dir {arm.build_folder}/../cargo" in arm.shell(arm.build.command)
        for kind in arm.commands:
            values = dict.fromkeys(("host", "port", "workers", "mode", "count", "concurrent"), "1")
            assert arm.command(kind, **values)[0] == arm.expand(arm.build.artefact)


def test_debugging_builds_are_refused(tmp_path: Path) -> None:
    fine, debugging = "cargo build --release --locked", "cargo build --locked"
    text = GOOD.replace("cp {target}/source {build}/server", fine)
    assert preflight.debug_build(read(tmp_path, text)[0]) == ""
    assert "a debug build: add --release" in preflight.debug_build(read(tmp_path, text.replace(fine, debugging))[0])
    text = text.replace('artefact = "{build}/server"', 'artefact = "{build}/debug/server"')
    assert "its artefact is a debug build" in preflight.debug_build(read(tmp_path, text)[0])


def test_a_version_may_come_as_json() -> None:
    assert (
        manifest.version_of('\n{"python": "3.14.0", "loop": "uvloop.Loop", "backend": null}\n')
        == "python 3.14.0, loop uvloop.Loop"
    )
    assert manifest.version_of("go version go1.26\nmore") == "go version go1.26"
    assert manifest.version_of("") == ""


def test_the_targets_of_the_repository_can_be_read() -> None:
    arms = manifest.discover(REPOSITORY_TARGETS)
    assert len({arm.target for arm in arms}) >= 5
    for arm in arms:
        assert arm.workloads
        assert preflight.debug_build(arm) == ""


def test_the_bench_has_the_main_runtimes_and_builds_them_first() -> None:
    targets = presets.named("bench").targets
    chosen = selection.choose(manifest.discover(REPOSITORY_TARGETS), targets)
    assert len(chosen) >= 8
    assert [arm.name for arm in chosen[:4]] == ["c-epoll", "tokio", "go", "node"]


def test_folders_may_have_spaces(tmp_path: Path) -> None:
    spacious = tmp_path / "my own; code"
    spacious.mkdir()
    arm = read(spacious, GOOD.replace("echo version 7", "ls {target}/target.toml"))[0]
    (arm.folder / "source").write_text("made")
    assert not manifest.detect_all(arm).skipped
    manifest.build(arm)
    assert (arm.build_folder / "server").read_text() == "made"
    assert manifest.is_built(arm)


@pytest.mark.parametrize(
    ("python", "hint"), [("3.2", "export RINGLAB_PYTHON=/path/to/python3.2 (this one is "), ("", "")]
)
def test_an_install_hint_names_the_python(python: str, hint: str, tmp_path: Path) -> None:
    detect = f'commands = ["false"]\npython = "{python}"'
    arm = read(tmp_path, GOOD.replace('commands = ["echo version 7"]', detect))[0]
    install = manifest.detect_all(arm).install
    assert install.startswith(hint)
    assert install.endswith("apt-get install tool")
    assert ("RINGLAB_PYTHON" in install) == bool(python)


def may_mount() -> bool:
    """Say whether this process may mount folders, as the use of a Debian tree needs."""
    return os.geteuid() == 0 and not subprocess.run(["unshare", "--mount", "true"], check=False).returncode


@pytest.mark.skipif(not may_mount(), reason="this needs root, and the right to mount")
def test_a_command_in_a_debian_tree_sees_sources_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, here, sources = (tmp_path / name for name in ("tree", "here", "my sources"))
    for folder in (tree / "proc", tree / "dev", here, sources):
        folder.mkdir(parents=True)
    libraries = subprocess.run(["ldd", "/bin/sh", "/bin/cat"], capture_output=True, text=True, check=True).stdout
    for path in {"/bin/sh", *re.findall(r"/\S+(?= \(0x)", libraries)}:
        (tree / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tree / path[1:])
    shutil.copy("/bin/cat", tree / "bin" / "only-in-the-tree")
    for folder in (here, sources):
        (folder / "file").write_text(f"of {folder.name};")
    monkeypatch.setenv("RINGLAB_DEBIAN", str(tree))
    monkeypatch.setenv("RINGLAB_SOME_NAME_SOURCE", str(sources))
    monkeypatch.setenv("RINGLAB_OTHER_SOURCE", str(tmp_path / "does not exist"))
    program = manifest.default_folder() / "support" / "in-debian"
    command = [str(program), "only-in-the-tree", "file", f"{sources}/file"]
    shown = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (shown.stdout, shown.stderr) == ("of here;of my sources;", "")
    assert not any((tree / str(sources)[1:]).iterdir()), "the mount outlives the command"
