"""Profiles: stacks are read as perf prints them, and written as other tools read them."""

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from ringlab import process, profiling, sampling

PRINTED = """
python 3.11 4242/4242 cpu-clock:pppH:
\t    55d0c0d0e0f0 _PyEval_EvalFrameDefault+0x1a2b (/usr/bin/python3.11)
\t    55d0c0d0a0a0 [unknown] (/usr/bin/python3.11)
\t    7f00aa00bb00 __libc_start_main+0x80 (/usr/lib/libc.so.6)

python 3.11 4242/4242 cpu-clock:pppH:
\t    55d0c0d0e0f1 _PyEval_EvalFrameDefault+0x1a2c (/usr/bin/python3.11)
\t    55d0c0d0a0a0 [unknown] (/usr/bin/python3.11)
\t    7f00aa00bb00 __libc_start_main+0x80 (/usr/lib/libc.so.6)

tokio-worker 77/78 cycles:
\tffffffff81000001 tcp_sendmsg+0x11 ([kernel.kallsyms])
\t    5500aa000001 <tokio::net::Tcp as core::future::Future>::poll::h0123456789abcdef+0x5 (/work/server)
\t    5500aa000002 operator()(int, char const*) const+0x7 (/work/server (deleted))

"""


def test_stacks_are_counted_from_what_perf_prints() -> None:
    assert sampling.fold(PRINTED) == {
        ("python 3.11", "__libc_start_main", "[python3.11]", "_PyEval_EvalFrameDefault"): 2,
        (
            "tokio-worker", "operator()(int, char const*) const", "<tokio::net::Tcp as core::future::Future>::poll",
            "tcp_sendmsg [kernel]",
        ): 1,
    }  # fmt: skip


def test_stacks_without_an_empty_line_at_the_end_count() -> None:
    assert sum(sampling.fold(PRINTED.rstrip()).values()) == 3
    assert sampling.fold("") == {}


def test_folded_stacks_are_for_other_tools() -> None:
    assert profiling.folded(Counter({("p", "a;b"): 2, ("p",): 1})) == "p 1\np;a:b 2\n"


def test_a_missing_perf_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sampling.why_not() == (
        "perf isn't installed: apt-get install linux-perf (Debian), or linux-tools-generic (Ubuntu)"
    )


def test_a_forbidden_perf_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\necho 'Access to performance monitoring is limited.' >&2\nexit 255\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = sampling.why_not()
    assert "perf may not sample here: Access to performance monitoring is limited." in found
    assert "sysctl kernel.perf_event_paranoid=1" in found


def test_a_recording_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\necho 'no such process' >&2\nexit 1\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with sampling.Sampler([1], tmp_path / "perf.data") as sampler:
        sampler.see({"event": "window_start"})
        assert sampler.recorder is not None
        sampler.recorder.wait()
        sampler.see({"event": "window_end"})
    assert sampler.problem == "no such process"
    with pytest.raises(process.SampleFailed, match="perf script: no such process"):
        sampling.script(tmp_path / "perf.data")


def test_perf_itself_is_read(tmp_path: Path) -> None:
    problem = sampling.why_not()
    if problem:
        pytest.skip(problem)
    perf = shutil.which("perf")
    assert perf is not None
    data = tmp_path / "perf.data"
    sampling.subprocess.run(
        [perf, "record", "-q", "-F", "499", "-g", "-o", data, "--", "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"],
        check=True, capture_output=True,
    )  # fmt: skip
    stacks = sampling.fold(sampling.script(data))
    assert sum(stacks.values()) > 0
    assert any(stack[0] in ("sh", "dash", "bash", "busybox") for stack in stacks)
