"""Make asyncio create the loop that `tools/suites.py` asks for, in a process that runs another project's tests.

pytest imports this module as a plugin, in each of its processes. As a program it runs another module, with its arguments.
PYTEST_DONT_REWRITE: run as a program, it is imported before pytest could rewrite it.
"""

import asyncio
import importlib
import os
import runpy
import sys

LOOP = os.environ["RINGLOOP_SUITES_LOOP"]


def plug_in() -> None:
    """Replace asyncio's loop, unless asyncio is what was asked for, and check that new loops are of the right kind."""
    if LOOP != "asyncio":
        import ringloop

        importlib.import_module("conformance").plug_in(ringloop.EventLoop)
    loop = asyncio.new_event_loop()
    try:
        made = getattr(loop, "backend", "asyncio")
        if made != LOOP:
            raise RuntimeError(f"new loops are {made}'s, and not {LOOP}'s")
    finally:
        loop.close()


plug_in()

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
