"""The error messages of tools/pythons.sh. `.ci/run` uses the tree that it makes."""

import subprocess

import pytest

from support import REPOSITORY

PROGRAM = REPOSITORY / "tools" / "pythons.sh"


def run(*arguments, cwd=REPOSITORY):
    return subprocess.run(["bash", PROGRAM, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(option):
    result = run("--dir", "/no/such/folder", option)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: tools/pythons.sh ")
    assert "--rust" in result.stdout
    assert "--clang" in result.stdout
    assert "--remove" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--no-such-option"], "unknown option --no-such-option; see --help"),
        (["--dir"], "--dir needs a folder; see --help"),
        (["--remove", "make"], "--remove takes no command; see --help"),
    ],
)
def test_wrong_arguments(arguments, text):
    result = run(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"pythons.sh: {text}\n")


def test_outside_of_the_repository(tmp_path):
    result = run("true", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == f"pythons.sh: the current folder, {tmp_path}, is not in the repository, {REPOSITORY}\n"
