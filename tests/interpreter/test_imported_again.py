"""ringloop imported again after its modules were removed from sys.modules, as tests of other projects do."""

import pytest

import support

pytestmark = pytest.mark.ringloop_only


def test_both_modules_run_callbacks(arm):
    """With native types made anew, handles that one module keeps for new ones were counted, and missing, in the other."""
    child = support.run_child(
        """
        import asyncio, gc
        import ringloop

        ran = []

        async def main():
            loop = asyncio.get_running_loop()
            for _ in range(100):
                loop.call_soon(ran.append, 1)
                loop.call_later(0, ran.append, 1)
            while len(ran) < 200:
                await asyncio.sleep(0)
            ran.clear()

        loop = ringloop.new_event_loop()
        loop.run_until_complete(main())
        for name in [name for name in sys.modules if name.partition(".")[0] == "ringloop"]:
            del sys.modules[name]
        first = ringloop
        import ringloop
        assert ringloop is not first
        ringloop.run(main())
        first.run(main())
        loop.run_until_complete(main())
        loop.close()
        gc.collect()
        print("all ran")
        """,
        arm,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "all ran\n", "")
