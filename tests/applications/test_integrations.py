"""The code of docs/integrations.md, run as it is written there, on each backend."""

import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import urllib.request

import pytest

import processes
import support

PAGE = support.REPOSITORY / "docs" / "integrations.md"
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
SNIPPETS = {title: text for _, title, text in BLOCK.findall(PAGE.read_text())}
ON_RINGLOOP = "<EventLoop running=True closed=False debug=False>"

pytestmark = pytest.mark.ringloop_only


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the page's application in it."""
    (tmp_path / "hello.py").write_text(SNIPPETS["hello.py"])
    return tmp_path


def environment(arm, **more):
    # Debug mode would show in what the snippets print.
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONASYNCIODEBUG", "PYTHONDEVMODE")
    }
    return processes.scripts_on_path({**inherited, "RINGLOOP_BACKEND": arm, **more})


def run(command, folder, arm, **options):
    """Run a command to its end; return what it wrote on stdout and stderr, and demand that it succeeded."""
    ended = subprocess.run(
        command,
        cwd=folder,
        env=environment(arm, **options.pop("environment", {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * support.PATIENCE_S,
        **options,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def run_snippet(title, folder, arm, *arguments):
    (folder / title).write_text(SNIPPETS[title])
    return run([sys.executable, title, *arguments], folder, arm)


@contextlib.contextmanager
def serving(command, folder, arm):
    """Run a server's command line, on a port of ours in place of the page's; yield the program and its URL."""
    port = support.free_port()
    for name in folder.glob("*.py"):
        name.write_text(name.read_text().replace("8000", str(port)))
    command = [part.replace("8000", str(port)) for part in command]
    quiet = {"PYTHONASYNCIODEBUG": "", "PYTHONDEVMODE": ""}
    with processes.running(command, folder / "log", arm=arm, cwd=folder, environment=quiet) as program:
        program.wait_for_port(port)
        yield program, f"http://{support.HOST}:{port}/"


def get(url):
    with urllib.request.urlopen(url, timeout=support.PATIENCE_S) as response:
        return response.status, response.read().decode()


HELLO = (200, f"hello from {ON_RINGLOOP}\n")


def test_runner(arm, folder):
    assert run_snippet("program.py", folder, arm).splitlines() == [ON_RINGLOOP] * 3


@pytest.mark.parametrize("title", ["uvicorn", "uvicorn with workers"])
def test_uvicorns_command_line(arm, folder, title):
    pytest.importorskip("uvicorn", reason="make test-applications installs it")
    with serving(shlex.split(SNIPPETS[title]), folder, arm) as (program, url):
        program.wait_for_output("startup complete")
        assert get(url) == HELLO
        program.stop()
        assert "Traceback" not in program.output()


def test_gunicorn(arm, folder):
    pytest.importorskip("uvicorn_worker", reason="make test-applications installs it")
    (folder / "gunicorn_worker.py").write_text(SNIPPETS["gunicorn_worker.py"])
    command = [*shlex.split(SNIPPETS["gunicorn"]), "--no-control-socket", "--worker-tmp-dir", str(folder)]
    with serving(command, folder, arm) as (program, url):
        assert get(url) == HELLO
        assert program.stop() == 0
        assert "Traceback" not in program.output()


def test_twisteds_reactor(arm, folder):
    pytest.importorskip("twisted", reason="make test-applications installs it")
    assert run_snippet("program_twisted.py", folder, arm) == f"{ON_RINGLOOP}\n"


def test_a_profile(arm, folder):
    (folder / "program.py").write_text(SNIPPETS["program.py"])
    command = shlex.split(SNIPPETS["cProfile"])
    output = run([sys.executable, *command[1:]], folder, arm)
    assert ON_RINGLOOP in output and "(main)" in output, output


@pytest.mark.parametrize(
    "title", ["serve_uvicorn.py", "serve_uvicorn_any.py", "serve_hypercorn.py", "serve_aiohttp.py"]
)
def test_servers_as_programs(arm, folder, title):
    pytest.importorskip(re.split("[_.]", title)[1], reason="make test-applications installs it")
    (folder / title).write_text(SNIPPETS[title])
    with serving([sys.executable, title], folder, arm) as (program, url):
        assert get(url) == HELLO
        status = program.stop()
        assert status in (0, -signal.SIGTERM)
        assert "Traceback" not in program.output()


def test_aiohttps_client(arm, folder):
    pytest.importorskip("aiohttp", reason="make test-applications installs it")
    (folder / "serve_aiohttp.py").write_text(SNIPPETS["serve_aiohttp.py"])
    with serving([sys.executable, "serve_aiohttp.py"], folder, arm) as (_, url):
        assert run_snippet("fetch_aiohttp.py", folder, arm, url) == "{} {}\n".format(*HELLO)


def test_anyio(arm, folder):
    pytest.importorskip("anyio", reason="make test-applications installs it")
    assert run_snippet("program_anyio.py", folder, arm) == f"{ON_RINGLOOP}\n"


@pytest.mark.parametrize(
    "plugin,module,options,passed",
    [
        ("anyio", "anyio.pytest_plugin", [], 1),
        # Until it is set, the plugin warns that its default will change.
        ("pytest-asyncio", "pytest_asyncio.plugin", ["-o", "asyncio_default_fixture_loop_scope=function"], 2),
        (
            "pytest-aiohttp",
            "pytest_aiohttp.plugin",
            [
                "-p",
                "pytest_asyncio.plugin",
                "-o",
                "asyncio_mode=auto",
                "-o",
                "asyncio_default_fixture_loop_scope=function",
            ],
            1,
        ),
    ],
)
def test_pytest_plugins(arm, tmp_path, plugin, module, options, passed):
    pytest.importorskip(module.split(".")[0], reason="make test-applications installs it")
    for name in ("conftest.py", "test_program.py"):
        (tmp_path / name).write_text(SNIPPETS[f"{plugin}: {name}"])
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    # Of the plugins that are installed here, only this one, as in a project that has no other.
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *options, "-p", module]
    output = run(command, tmp_path, arm, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    assert f"{passed} passed" in output, output


@pytest.mark.skipif(sys.version_info < (3, 13), reason="unittest takes a loop factory from Python 3.13 on")
def test_unittest(arm, tmp_path):
    (tmp_path / "test_unittest.py").write_text(SNIPPETS["test_unittest.py"])
    assert "OK" in run([sys.executable, "-W", "error", "-m", "unittest", "test_unittest"], tmp_path, arm)


def test_ipythons_prompt(arm, tmp_path):
    pytest.importorskip("IPython", reason="make test-applications installs it")
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit"]
    output = run(command, tmp_path, arm, input=SNIPPETS["ipython"], environment={"IPYTHONDIR": str(tmp_path)})
    assert ON_RINGLOOP in output, output


def test_ipythons_configuration(arm, tmp_path):
    pytest.importorskip("IPython", reason="make test-applications installs it")
    profile = tmp_path / "profile_default"
    profile.mkdir()
    (profile / "ipython_config.py").write_text(SNIPPETS["ipython_config.py"])
    code = "import asyncio\nawait asyncio.sleep(0); print(asyncio.get_running_loop())"
    output = run(
        [sys.executable, "-m", "IPython", "-c", code], tmp_path, arm, environment={"IPYTHONDIR": str(tmp_path)}
    )
    assert ON_RINGLOOP in output, output


def test_each_snippet_of_the_page_has_a_test():
    tests = pathlib.Path(__file__).parent.glob("test_*.py")
    tried = {name for path in tests for name in re.findall(r'"([^"\n]+)"', path.read_text())}
    tried |= {f"{plugin}: {name}" for plugin in tried for name in ("conftest.py", "test_program.py")}
    assert set(SNIPPETS) and not set(SNIPPETS) - tried
