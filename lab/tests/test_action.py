"""The action for CI: what action.yml declares, and the script that it runs, on somebody else's server."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import FAKES
from ringlab import cli

ACTION = Path(__file__).parent.parent / "action"
pytestmark = [pytest.mark.usefixtures("fake_load"), pytest.mark.timeout(300)]


class Job:
    """A job that has checked out a repository, whose server costs what is in its file `cost`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.summary = folder, folder / "summary.md"
        self.repository = folder / "repository"
        self.repository.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        programs = folder / "bin"
        programs.mkdir()
        ringlab = programs / "ringlab"
        ringlab.write_text(f'#!/bin/sh\nexec {sys.executable} -m ringlab "$@"\n')
        ringlab.chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"

    def git(self, *words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], cwd=self.repository, check=True)

    def commit(self, cost: float) -> None:
        (self.repository / "cost").write_text(str(cost))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"cost {cost}")

    def run(self, **inputs: str) -> "subprocess.CompletedProcess[str]":
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        server = f"{sys.executable} -IS {FAKES / 'server.py'} http --host {{host}} --port {{port}}"
        given = {
            "START": f"sh -c 'exec {server} --cost $(cat cost)'",
            "BUILD": "cp cost built",
            "BASE": "HEAD^",
            "HEAD": "HEAD",
            "REPOSITORY": str(self.repository),
            "ARGUMENTS": "http/50/closed --seconds 0.05 --rounds 4 --header 'X: a  b'",
            "CANNOT_TELL": "pass",
            "OUTPUT": str(self.folder / "out"),
            "PATH": self.path,
            "GITHUB_STEP_SUMMARY": str(self.summary),
        } | inputs
        environment = dict(os.environ) | given
        return subprocess.run([ACTION / "guard.sh"], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    found = Job(tmp_path)
    found.commit(1.0)
    return found


def test_a_slower_server_fails_the_job(job: Job) -> None:
    job.commit(1.2)
    done = job.run()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "GET / with 'X: a  b', to be answered with 200" in done.stdout
    summary = job.summary.read_text()
    assert re.search(r"server@head is worse than server@base in server CPU per operation: (19|20)[.\d]*% more", summary)
    assert (job.folder / "out" / "report.html").exists()


def test_an_equal_server_passes(job: Job) -> None:
    job.commit(1.0000001)
    done = job.run(BUILD="", ARGUMENTS="--seconds 0.05 --rounds 4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fine: none of 1 is slower" in job.summary.read_text()


@pytest.mark.parametrize(("what", "status"), [("pass", 0), ("fail", 3)])
def test_an_undecided_job_does_what_was_asked_for(what: str, status: int, job: Job) -> None:
    job.commit(1.2)
    done = job.run(CANNOT_TELL=what, ARGUMENTS="--seconds 0.05 --rounds 2")
    assert done.returncode == status, done.stdout + done.stderr
    assert ("::warning title=ringlab guard::cannot tell" in done.stdout) == (what == "pass")
    assert "cannot tell: 1 of 1" in job.summary.read_text()


def test_a_build_that_fails_is_no_verdict(job: Job) -> None:
    job.commit(1.0000001)
    done = job.run(BUILD="echo no compiler; exit 7", CANNOT_TELL="pass")
    assert done.returncode == 2
    assert "failed with code 7: no compiler" in done.stderr
    assert "could not be measured" in job.summary.read_text()


def test_what_is_in_the_arguments_is_not_run(job: Job) -> None:
    job.commit(1.0000001)
    marker = job.folder / "ran"
    done = job.run(ARGUMENTS=f"'$(touch {marker})' `touch {marker}`")
    assert done.returncode == 2
    assert not marker.exists()


def test_inputs_and_script_agree() -> None:
    text, script = (ACTION / "action.yml").read_text(), (ACTION / "guard.sh").read_text()
    inputs = set(re.findall(r"^  ([a-z-]+):$", text.partition("inputs:")[2].partition("runs:")[0], re.M))
    passed = dict(re.findall(r"^        ([A-Z_]+): \$\{\{ inputs\.([a-z-]+) \}\}$", text, re.M))
    assert set(passed.values()) == inputs
    assert all(name == each.upper().replace("-", "_") for name, each in passed.items())
    assert set(passed) == set(re.findall(r"\$([A-Z_]+)\b", script))
    options = {option for parameter in cli.main.commands["guard"].params for option in parameter.opts}
    assert set(re.findall(r"(--[a-z]+) \"\$", script)) <= options


@pytest.mark.parametrize("base", ["", "0" * 40])
def test_a_job_without_a_base_has_nothing_to_do(job: Job, base: str) -> None:
    done = job.run(BASE=base)
    assert done.returncode == 0, done.stderr
    assert "there is no base to compare with" in done.stdout
    assert not (job.folder / "out").exists()


def test_blank_arguments_are_none(job: Job) -> None:
    done = job.run(ARGUMENTS=" \n", START="no port", BASE="HEAD")
    assert done.returncode == 2, done.stdout
    assert "--start must say where the port goes" in done.stdout + done.stderr
