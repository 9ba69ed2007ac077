"""Where a result is kept that can't be written to its own place."""

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from ringlab import Refused, results, storage
from ringlab.report import terminal


@contextmanager
def output_that_leads_nowhere(how: str) -> Iterator[IO[str] | None]:
    if how == "closed":
        yield None
    elif how == "null":
        with open(os.devnull, "w") as null:
            yield null
    else:
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as unread:
            yield unread


@pytest.mark.parametrize("how", ["closed", "null", "unread"])
def test_a_result_that_is_printed_to_nobody_is_told_to_be_lost(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    scale = results.Scale(name="normal", rounds=3, window_s=0.2, warm_up_s=0.0, ramp_s=0.0)
    run = results.Run(command=["ringlab", "run"], begun="2026-11-21T15:00:00+00:00", seed=1, scale=scale)
    with output_that_leads_nowhere(how) as output, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        if how == "unread":
            terminal.make_console().print("which nobody reads")
        with pytest.raises(Refused, match="the standard output leads nowhere; what was measured is lost"):
            storage.keep_elsewhere(results.Result(run=run), "it can't be written")
