"""Looking into a running program from Python 3.14 on: call graphs, and `python -m asyncio ps` from another process."""

import asyncio
import re
import subprocess
import sys

import pytest

import support

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="asyncio has call graphs, ps and pstree from 3.14 on"
)

# Two tasks that wait, and a note on stdout when they do; the program ends with its stdin.
PROGRAM = """
async def leaf():
    await asyncio.get_running_loop().create_future()

async def branch():
    await leaf()

async def main():
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(0, ended.set_result, None)
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(branch(), name="worker")
        waiter = group.create_task(wait_for(worker), name="waiter")
        await asyncio.sleep(0)
        print("ready", flush=True)
        await ended
        loop.remove_reader(0)
        worker.cancel()

async def wait_for(task):
    await asyncio.wait([task])

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


def inspect(command, arm):
    """Return what `python -m asyncio` says of such a program: (exit status, text without numbers that differ)."""
    with support.start_child(PROGRAM, arm, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        tool = [sys.executable, "-m", "asyncio", command, str(process.pid)]
        done = subprocess.run(tool, capture_output=True, text=True, timeout=support.PATIENCE_S)
        process.stdin.close()
        assert process.wait(support.PATIENCE_S) == 0, process.stderr.read()
    text = done.stdout.replace(str(process.pid), "PID") + done.stderr
    return done.returncode, re.sub(r"0x[0-9a-f]+", "ADDRESS", text)


@pytest.fixture
def inspected(arm):
    """Return `inspect` of this arm, after a look at asyncio's: what asyncio cannot show here, nobody can."""

    def both(command):
        expected = inspect(command, "asyncio")
        if expected[0] != 0:
            pytest.skip(
                f"python -m asyncio {command} cannot look into asyncio's own loop here: {expected[1].strip()[-200:]}"
            )
        return expected, inspect(command, arm)

    return both


def words(table):
    """Return the cells of a table, with its widths left out."""
    return [re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if not line.startswith("---")]


def test_ps_shows_the_tasks(inspected):
    (_, expected), (status, text) = inspected("ps")
    assert status == 0
    assert sorted(words(text)) == sorted(words(expected))
    assert "leaf -> branch" in text
    assert "worker" in text


def test_pstree_shows_who_waits_for_whom(inspected):
    (_, expected), (status, text) = inspected("pstree")
    assert status == 0
    assert sorted(text.splitlines()) == sorted(expected.splitlines())
    assert "(T) worker" in text


def test_call_graphs(loop_factory):
    async def leaf():
        await asyncio.sleep(0.001)
        return asyncio.capture_call_graph()

    async def branch():
        return await leaf()

    async def main():
        task = asyncio.create_task(branch(), name="inner")
        await asyncio.sleep(0)
        before = asyncio.format_call_graph(task)
        graph = await task
        return (
            [entry.frame.f_code.co_name for entry in graph.call_stack],
            [[entry.frame.f_code.co_name for entry in awaiting.call_stack] for awaiting in graph.awaited_by],
            re.sub(r"0x[0-9a-f]+", "ADDRESS", before),
        )

    def body(loop):
        return loop.run_until_complete(loop.create_task(main(), name="outer"))

    own, awaited_by, text = support.same_as_asyncio(body, loop_factory)
    assert own[:2] == ["leaf", "branch"]
    assert awaited_by == [["main"]]
    assert "branch()" in text


def test_print_call_graph_in_a_callback(loop, capsys):
    """Outside of any task there is nothing to show."""
    loop.call_soon(asyncio.print_call_graph)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert capsys.readouterr().out.strip() in ("", "None")
