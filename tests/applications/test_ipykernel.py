"""Jupyter's kernel, whose threads watch descriptors of the main thread's loop while that waits.

The kernel runs on the loop under test, and so does the client that talks to it.
"""

import asyncio
import contextlib
import json
import pathlib
import re
import sys
import tempfile
import textwrap

import pytest

import support

pytest.importorskip("ipykernel", reason="make test-applications installs it")
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager

PAGE = support.REPOSITORY / "docs" / "integrations.md"
KERNEL = json.loads(
    re.search(r'^```json title="kernel.json"\n(.*?)^```$', PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
)


def specification(arm):
    """Return what docs/integrations.md has for a kernel on ringloop, with this Python; or the same on asyncio."""
    command = [sys.executable, *KERNEL["argv"][1:]]
    if arm == "asyncio":
        command[2] = command[2].replace("import ringloop; ringloop.install(); ", "")
        assert "ringloop" not in command[2]
    return json.dumps({**KERNEL, "argv": command})


class Kernel:
    """A running kernel, and a client of it."""

    def __init__(self, manager, log):
        self.manager = manager
        self.log = log
        self.client = manager.client()

    async def begin(self, code):
        """Send a cell to be run; its answer is for `finish`."""
        return self.client.execute(code)

    async def messages(self, cell):
        """Yield what the cell has the kernel say, one message after the other."""
        while True:
            message = await self.client.get_iopub_msg(timeout=support.PATIENCE_S)
            if message["parent_header"].get("msg_id") == cell:
                yield message["msg_type"], message["content"]

    async def finish(self, cell):
        """Wait until a cell has run; what it printed, and the name of the exception that it ended with, or None."""
        printed = []
        error = None
        async for kind, content in self.messages(cell):
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                break
        return "".join(printed), error

    async def run(self, code):
        return await self.finish(self.client.execute(textwrap.dedent(code)))

    async def printed(self, text, cell):
        """Wait until a cell that runs has printed this."""
        async for kind, content in self.messages(cell):
            if kind == "stream" and text in content["text"]:
                break


@pytest.fixture
def kernel(arm, loop, tmp_path, monkeypatch):
    """Return a context with a running kernel. It listens on Unix sockets: ports might be others' by the time they are used."""

    @contextlib.asynccontextmanager
    async def start():
        with tempfile.TemporaryDirectory(prefix="ringloop-") as folder, log.open("w") as output:
            manager = AsyncKernelManager(
                kernel_name="loop",
                kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(tmp_path / "kernels")]),
                transport="ipc",
                ip=str(pathlib.Path(folder, "kernel")),  # The paths of Unix sockets are short.
            )
            await manager.start_kernel(stdout=output, stderr=output)
            try:
                running = Kernel(manager, log)
                running.client.start_channels()
                await running.client.wait_for_ready(timeout=support.PATIENCE_S)
                yield running
            finally:
                running.client.stop_channels()
                await manager.shutdown_kernel(now=True)
                manager.context.destroy()

    log = tmp_path / "log"
    (tmp_path / "kernels" / "loop").mkdir(parents=True)
    (tmp_path / "kernels" / "loop" / "kernel.json").write_text(specification(arm))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("PYTHONASYNCIODEBUG", "PYTHONDEVMODE"):
        monkeypatch.delenv(name, raising=False)  # They would show in what the cells print.
    return start


def run(loop, kernel, body):
    """Run `body(kernel)` with a kernel of its own."""

    async def main():
        async with kernel() as running:
            await body(running)

    loop.run_until_complete(main())


def test_cells(loop, kernel, arm):
    async def body(kernel):
        printed, error = await kernel.run(
            "import asyncio, threading; print(type(asyncio.get_running_loop()).__module__)"
        )
        assert error is None
        assert printed.startswith("asyncio" if arm == "asyncio" else "ringloop")
        assert await kernel.run("x = 6 * 7") == ("", None)
        assert await kernel.run("print(x)") == ("42\n", None)
        assert await kernel.run("1 / 0") == ("", "ZeroDivisionError")
        assert await kernel.run("await asyncio.sleep(0.01); print('slept')") == ("slept\n", None)
        gathered = await kernel.run("print(await asyncio.gather(*(asyncio.sleep(0, n) for n in range(3))))")
        assert gathered == ("[0, 1, 2]\n", None)
        assert await kernel.run("print(await asyncio.to_thread(threading.active_count) > 1)") == ("True\n", None)

    run(loop, kernel, body)


def test_a_task_goes_on_between_cells(loop, kernel):
    async def body(kernel):
        assert await kernel.run("import asyncio; done = asyncio.Event()") == ("", None)
        begun = await kernel.run(
            """
            task = asyncio.create_task(asyncio.sleep(0.05))
            task.add_done_callback(lambda _: done.set())
            """
        )
        assert begun == ("", None)
        assert await kernel.run("await done.wait(); print(task.done())") == ("True\n", None)

    run(loop, kernel, body)


def test_child_processes(loop, kernel):
    async def body(kernel):
        echoed = await kernel.run(
            """
            import asyncio, subprocess
            child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            print(await child.communicate(b"echoed"), child.returncode)
            """
        )
        assert echoed == ("(b'echoed', None) 0\n", None)
        printed, error = await kernel.run("!echo from the shell")
        assert (printed.strip(), error) == ("from the shell", None)

    run(loop, kernel, body)


def test_servers_and_connections(loop, kernel):
    async def body(kernel):
        echoed = await kernel.run(
            """
            import asyncio
            async def serve(reader, writer):
                writer.write(await reader.readline())
                writer.close()
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"echoed\\n")
            print(await reader.read())
            writer.close()
            server.close()
            """
        )
        assert echoed == ("b'echoed\\n'\n", None)

    run(loop, kernel, body)


@pytest.mark.parametrize("code", ["time.sleep(1000)", "await asyncio.sleep(1000)"], ids=["blocking", "awaiting"])
def test_an_interrupt(loop, kernel, arm, code):
    if arm == "asyncio" and "await" in code:
        pytest.skip("asyncio's loop sleeps on: it hears of the interrupt with the next message")

    async def body(kernel):
        assert await kernel.run("import asyncio, time") == ("", None)
        cell = await kernel.begin(f"print('begun', flush=True); {code}")
        await kernel.printed("begun", cell)
        await kernel.manager.interrupt_kernel()
        _, error = await kernel.finish(cell)
        assert error in ("KeyboardInterrupt", "CancelledError")
        assert await kernel.run("print('alive')") == ("alive\n", None)
        assert await kernel.run("await asyncio.sleep(0.01); print('alive')") == ("alive\n", None)

    run(loop, kernel, body)


def test_shutdown(loop, kernel):
    async def body(kernel):
        assert await kernel.run("import asyncio; await asyncio.sleep(0.01)") == ("", None)
        kernel.client.shutdown()
        process = kernel.manager.provisioner.process
        assert await asyncio.to_thread(process.wait, support.PATIENCE_S) == 0
        assert "Traceback" not in kernel.log.read_text()

    run(loop, kernel, body)
