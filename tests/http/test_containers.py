"""`ringloop serve` under the seccomp filters of containers: ours, which allows io_uring, and those that runtimes have by default.

A filter is made from the profile of JSON that a container runtime would read.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import support
from support import REPOSITORY

PROFILE = REPOSITORY / "deploy/seccomp/ringloop.json"
ADD_IO_URING = REPOSITORY / "deploy/seccomp/allow_io_uring.py"
PODMANS = Path("/usr/share/containers/seccomp.json")
IO_URING = {"io_uring_setup", "io_uring_enter", "io_uring_register"}

pytestmark = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="the profile is for x86-64 and aarch64"
)


@pytest.fixture(scope="module")
def numbers():
    """Return the numbers of system calls by name, of this machine."""
    command = ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-xc", os.devnull]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    words = [line.split() for line in lines if line.startswith("#define __NR_")]
    return {each[1].removeprefix("__NR_"): int(each[2]) for each in words if each[2].isdigit()}


def refusing(code):
    """Return our profile without io_uring, and with an errno for what it doesn't allow, as runtimes have them by default."""
    profile = json.loads(PROFILE.read_text())
    rules = [rule for rule in profile["syscalls"] if not IO_URING & set(rule["names"])]
    return profile | {"defaultErrnoRet": code, "syscalls": rules}


def filter_of(profile, numbers):
    """Return the instructions of a filter. Rules that depend on privileges are left out, conditions on arguments are ignored."""
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    rules = [rule for rule in profile["syscalls"] if not (rule.get("includes") or {}).get("caps")]
    allowed = {name for rule in rules if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    # Newer calls than this machine's headers know are refused.
    found = sorted(numbers[name] for name in allowed if name in numbers)
    assert len(found) > 200
    return [
        (support.LOAD_WORD, 0, 0, 0),
        *(
            instruction
            for number in found
            for instruction in (
                (support.JUMP_EQUAL, 0, 1, number),
                (support.RETURN, 0, 0, support.SECCOMP_ALLOW),
            )
        ),
        (support.RETURN, 0, 0, support.SECCOMP_FAIL | profile.get("defaultErrnoRet", errno.EPERM)),
    ]


def try_ringloop(profile, numbers):
    """Run tools/try_wheel.py, which echoes and serves a request on each backend that it gets, under a profile; return what it prints."""
    support.needs_seccomp()
    source = "import json, os, sys, support; support.install_seccomp(*json.loads(sys.argv[1])); os.execv(sys.executable, sys.argv[2:])"
    command = [sys.executable, REPOSITORY / "tools/try_wheel.py", "--here"]
    path = os.pathsep.join([str(REPOSITORY / "tests"), str(REPOSITORY / "python")])
    done = subprocess.run(
        [sys.executable, "-c", source, json.dumps(filter_of(profile, numbers)), *command],
        env=os.environ | {"PYTHONPATH": path, "RINGLOOP_BACKEND": "auto"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def grants_io_uring():
    command = [sys.executable, "-m", "ringloop", "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["io_uring"]


def test_our_profile_allows_both_backends(numbers):
    if not grants_io_uring():
        pytest.skip("io_uring is refused here already")
    said = try_ringloop(json.loads(PROFILE.read_text()), numbers)
    assert "serve: answered a request on epoll\n" in said
    assert "serve: answered a request on io_uring\n" in said


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param(errno.EPERM, "refused with EPERM", id="as-docker-and-containerd"),
        pytest.param(errno.ENOSYS, "ENOSYS", id="as-podman-and-cri-o"),
    ],
)
def test_without_io_uring_requests_are_served_on_epoll(numbers, code, reason):
    said = try_ringloop(refusing(code), numbers)
    assert "serve: answered a request on epoll\n" in said
    (line,) = [line for line in said.splitlines() if line.startswith("io_uring: not tried: ")]
    assert reason in line


def test_io_uring_is_all_that_a_profile_gains():
    profile = refusing(errno.EPERM)
    profile["syscalls"].append({"names": ["io_uring_setup", "keyctl"], "action": "SCMP_ACT_ERRNO"})
    new = support.load_file(ADD_IO_URING).allow(profile)
    *same, changed, added = new["syscalls"]
    assert same == profile["syscalls"][:-1]
    assert changed == {"names": ["keyctl"], "action": "SCMP_ACT_ERRNO"}
    assert (set(added["names"]), added["action"]) == (IO_URING, "SCMP_ACT_ALLOW")
    assert new | {"syscalls": None} == profile | {"syscalls": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("nofile", "this is no seccomp profile in Docker's format"),
        ("[]", "this is no seccomp profile in Docker's format"),
        ('{"defaultAction": "SCMP_ACT_ERRNO"}', "this is no seccomp profile in Docker's format"),
    ],
)
def test_what_is_no_profile_is_told_in_a_line(tmp_path, content, message):
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    result = subprocess.run([sys.executable, ADD_IO_URING, path], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{path}: {message}") and result.stderr.count("\n") == 1


def test_under_podmans_own_profile(numbers):
    """Before and after io_uring is added to it."""
    if not PODMANS.exists():
        pytest.skip(f"there is no {PODMANS}; install it with: apt-get install golang-github-containers-common")
    profile = json.loads(PODMANS.read_text())
    assert "io_uring: not tried: " in try_ringloop(profile, numbers)
    if grants_io_uring():
        assert "answered a request on io_uring\n" in try_ringloop(
            support.load_file(ADD_IO_URING).allow(profile), numbers
        )
