"""The Python code of the guides, run as it is written there. RUN_ELSEWHERE has the rest."""

import ast
import asyncio
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

import ringloop
import support
from serve_process import serving

PAGES = {
    page.name: page
    for folder in ("docs", "docs/decisions", "docs/site")
    for page in (support.REPOSITORY / folder).glob("*.md")
}
# A block of Python and the line before it. Blocks in lists are indented.
BLOCK = re.compile(r'^([^\n]*)\n( *)```python(?: title="([^"]+)")? *\n(.*?)^\2```$', re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
# Where other pages' blocks are run; those tests check that they know each of them.
RUN_ELSEWHERE = {
    "files.md": "tests/examples/test_guide_programs.py",
    "integrations.md": "tests/applications/test_integrations.py",
    "streams.md": "tests/examples/test_guide_programs.py",
}
DASHBOARD = support.REPOSITORY / "docs" / "grafana-dashboard.json"
APPLICATION = """\
async def app(scope, receive, send):
    assert scope["type"] == "http", scope["type"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})
"""

# The command line's servers are processes of their own.
pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]


def code_of(page, title):
    found = [text for _, _, name, text in BLOCK.findall(PAGES[page].read_text()) if name == title]
    assert len(found) == 1, f"{page} has {len(found)} blocks called {title!r}"
    return found[0]


def test_each_block_of_python_is_run_or_says_why_not():
    here = PAGES.keys() - RUN_ELSEWHERE.keys()
    tests = ast.parse(pathlib.Path(__file__).read_text())
    called = {
        tuple(argument.value for argument in node.args)
        for node in ast.walk(tests)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "code_of"
        if all(isinstance(argument, ast.Constant) for argument in node.args)
    }
    for page in PAGES.values():
        text = page.read_text()
        assert len(re.findall(r"^ *```py", text, re.MULTILINE)) == len(BLOCK.findall(text)), (
            f"{page.name}: an unusual fence"
        )
    forgotten = [
        f"docs/{page}: {title or text.splitlines()[0]!r}"
        for page in sorted(here)
        for before, _, title, text in BLOCK.findall(PAGES[page].read_text())
        if (page, title) not in called and not NOT_RUN.search(before)
    ]
    assert not forgotten, "neither run by a test here nor marked with <!-- not run: REASON --> in the line before"
    for page, test in RUN_ELSEWHERE.items():
        assert f'"{page}"' in (support.REPOSITORY / test).read_text()
        # Those tests find blocks by their titles.
        assert all(title for _, _, title, _ in BLOCK.findall(PAGES[page].read_text()))


def test_links_to_our_files_on_github_lead_somewhere():
    """PyPI shows the README, so its links are absolute. `make docs` checks the relative ones of the other pages."""
    for page in [*PAGES.values(), *support.REPOSITORY.glob("*.md")]:
        for kind, path in re.findall(r"github\.com/ringloop/ringloop/(blob|tree)/main/([^)#\s]+)", page.read_text()):
            target = support.REPOSITORY / path
            assert target.is_dir() if kind == "tree" else target.is_file(), f"{page.name}: {path}"


def run_with_await(code, given):
    """Run code that awaits outside of a function; return a coroutine that does so."""
    return eval(compile(code, "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), given)


def echo(arm, folder, code):
    """Run an echo server that listens on port 8888, on a port of ours; return what it has printed when it serves."""
    port = support.free_port()
    (folder / "echo.py").write_text(code.replace("8888", str(port)))
    with subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "echo.py"], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            with connect(program, port) as client:
                client.sendall(b"hello")
                assert client.recv(100) == b"hello"
        finally:
            program.terminate()
        return program.stdout.read()


def connect(program, port):
    """Return a connection to a server that may still be starting."""
    while True:
        try:
            return socket.create_connection((support.HOST, port), timeout=support.PATIENCE_S)
        except ConnectionRefusedError:
            assert program.poll() is None, "the server has ended"
            time.sleep(0.01)


def test_the_first_program(arm, tmp_path):
    assert echo(arm, tmp_path, code_of("quickstart.md", "echo.py")) == f"on {arm}\n"


def test_the_readme(arm, tmp_path, capsys):
    blocks = [text for _, _, _, text in BLOCK.findall((support.REPOSITORY / "README.md").read_text())]
    server, factory, backend = blocks
    echo(arm, tmp_path, server)
    ran = []

    async def main():
        ran.append(type(asyncio.get_running_loop()))

    given = {"asyncio": asyncio, "ringloop": ringloop, "main": main}
    if sys.version_info >= (3, 12):
        exec(factory, given)
        assert ran == [ringloop.EventLoop]
    exec(backend, given)
    assert given["loop"].is_closed()
    assert capsys.readouterr().out.startswith(f"{arm} - ")


def test_the_program_of_the_front_page(arm, capsys):
    exec(compile(code_of("index.md", "program.py"), "guide", "exec"), {"__name__": "guide"})
    assert capsys.readouterr().out == f"on {arm}\n"


def test_other_ways_to_run_a_program(arm, capsys):
    code = code_of("quickstart.md", "other ways")
    if sys.version_info < (3, 12):
        # As the comment above it says.
        code = re.sub(r"^asyncio\.run\(.*\n", "", code, flags=re.MULTILINE)
    program = f"""\
import asyncio
import ringloop


async def main():
    print(asyncio.get_running_loop().backend)


{code}"""
    exec(compile(program, "guide", "exec"), {"__name__": "guide"})
    assert set(capsys.readouterr().out.split()) == {arm}


def test_between_two_snapshots(loop, capsys):
    async def work():
        pass

    code = code_of("metrics.md", "between two snapshots")
    loop.run_until_complete(run_with_await(code, {"loop": loop, "work": work}))
    assert re.fullmatch(r"\d+ callbacks,\n\d+ system calls\n", capsys.readouterr().out)


def test_before_and_after_the_move_from_uvloop(arm, tmp_path):
    lines = code_of("migrating.md", "before and after").splitlines()
    middle = lines[0].index("import", 1)
    sides = ["\n".join(line[:middle].rstrip() for line in lines), "\n".join(line[middle:] for line in lines)]
    assert sides[0].replace("uvloop", "ringloop") == sides[1]
    (tmp_path / "program.py").write_text(sides[1])
    subprocess.run([sys.executable, "-W", "error", "program.py"], cwd=tmp_path, check=True, timeout=support.PATIENCE_S)


@pytest.mark.parametrize(
    "code, module",
    [
        pytest.param(code_of("serve.md", "serve.py"), "app", id="serve.md"),
        pytest.param(code_of("migrating-uvicorn.md", "serve_hello.py"), "hello", id="migrating-uvicorn.md"),
    ],
)
def test_serving_from_python(arm, tmp_path, code, module):
    (tmp_path / f"{module}.py").write_text(APPLICATION)
    (tmp_path / "serve.py").write_text(code.replace("8000", "0"))
    with serving(arm, command=[sys.executable, "serve.py"], cwd=tmp_path) as program:
        assert program.get_again("/")[2] == b"hello"
        assert program.stop() in (0, -signal.SIGTERM)
        assert "Traceback" not in program.output


def test_serving_in_a_loop_of_its_own(arm, tmp_path):
    code = code_of("serve.md", "a loop of its own").replace("8000", "0")
    body = "\n".join(f"    {line}" for line in code.splitlines())
    text = f"import ringloop\n\n{APPLICATION}\n\nasync def main():\n{body}\n\n\nringloop.run(main())\n"
    (tmp_path / "program.py").write_text(text)
    with serving(arm, command=[sys.executable, "program.py"], cwd=tmp_path) as program:
        assert program.get("/")[2] == b"hello"


def test_a_file_of_an_application(arm, tmp_path):
    file = tmp_path / "report.pdf"
    file.write_bytes(b"a report")
    code = code_of("serve.md", "pathsend")
    body = "\n".join(f"    {line}" for line in code.splitlines())
    text = f"import os\n\npath = {str(file)!r}\n\n\nasync def app(scope, receive, send):\n{body}\n"
    (tmp_path / "sending.py").write_text(text)
    with serving(arm, "sending:app", "--lifespan", "off", cwd=tmp_path) as program:
        assert program.get("/")[2] == b"a report"


def test_early_hints_and_trailers(arm, tmp_path):
    body = "\n".join(f"    {line}" for line in code_of("serve.md", "early hints and trailers").splitlines())
    (tmp_path / "hinting.py").write_text(f"async def app(scope, receive, send):\n{body}\n")
    with serving(arm, "hinting:app", "--lifespan", "off", cwd=tmp_path) as program, program.connect() as sock:
        # Not every http.client knows that a response follows a 103.
        sock.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nte: trailers\r\nconnection: close, te\r\n\r\n")
        answer = sock.makefile("rb").read()
    hints, _, response = answer.partition(b"\r\n\r\n")
    assert hints.startswith(b"HTTP/1.1 103 ")
    assert b"\r\nlink: </style.css>; rel=preload; as=style" in hints.lower()
    assert response.startswith(b"HTTP/1.1 200 ")
    assert response.endswith(b"\r\n\r\n3\r\n...\r\n0\r\nx-checksum: 1f3a\r\n\r\n")


def test_the_command_that_replaces_uvicorns(arm, tmp_path):
    text = PAGES["migrating-uvicorn.md"].read_text()
    commands = dict(re.findall(r'^```console title="([^"]+)"\n(.*?)\n```$', text, re.DOTALL | re.MULTILINE))
    assert commands["after"] == commands["before"].replace("uvicorn ", "ringloop serve ", 1)
    (tmp_path / "hello.py").write_text(APPLICATION)
    command = commands["after"].replace("8000", "0").replace("0.0.0.0", support.HOST).split()
    with serving(arm, command=[sys.executable, "-m", *command], cwd=tmp_path) as program:
        assert program.get_again("/")[2] == b"hello"


def test_who_holds_the_loop(loop):
    ran = []

    async def work():
        ran.append(loop.metrics())

    given = {"asyncio": asyncio, "ringloop": ringloop, "work": work}
    exec(code_of("troubleshooting.md", "who holds the loop"), given)
    loop.run_until_complete(given["main"]())
    assert len(ran) == 1


def series(text):
    """Return the names in a page of metrics, each with the names of its labels."""
    parser = pytest.importorskip("prometheus_client.parser")
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_dashboard_asks_for_metrics_that_exist(arm):
    """And for labels that they have; `job` and `instance` are Prometheus' own."""
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    with serving(arm, "applications:app", "--metrics", "/metrics") as program:
        program.get("/")
        exported = series(program.get("/metrics")[2].decode())
    assert len(queries) > 20
    for query in queries:
        names = re.findall(r"\b(?:ringloop|process)_\w+", query)
        assert names, query
        for name in names:
            assert name in exported, query
        labels = {
            *re.findall(r"(\w+)(?:=~|!~|!=|=)\"", query),
            *(label for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(", ")),
            *re.findall(r"\{\{(\w+)\}\}", query),
        }
        assert labels <= {"job", "instance"}.union(*(exported[name] for name in names)), query
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\b(?:ringloop|process)_\w+", target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= set().union(
                *(exported[name] for name in names)
            )
