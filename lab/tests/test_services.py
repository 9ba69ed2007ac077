"""Services that anybody has written: what they are asked, and what happens where their answer isn't right."""

import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ringlab import Refused, cli, generator, results, workloads
from ringlab.services import Service

CREATES = Service(
    method="PUT",
    path="/items/7?a=b",
    header=("Accept: text/plain", "X: y"),
    data='{"n": 1}',
    expect_status=201,
    expect_text='"id":7',
)


class Items(http.server.BaseHTTPRequestHandler):
    """A server of somebody who has never heard of this lab."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        right = (self.path, self.headers["Accept"], self.headers["X"], sent) == (
            "/items/7?a=b",
            "text/plain",
            "y",
            b'{"n": 1}',
        )
        self.answer(201 if right else 400, b'{"id":7}' if right else b"bad")

    def do_GET(self) -> None:
        known = self.path == "/health"
        self.answer(200 if known else 404, b"fine" if known else b"nothing here")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def items() -> Iterator[str]:
    """Yield the address of that server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Items) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def run(tmp_path: Path, items: str) -> Iterator[object]:
    """Return a function that measures the server, with the real load generator."""

    def measure(*words: str) -> tuple[Result, Path]:
        output = tmp_path / "out"
        fixed = ("--rounds", "3", "--seconds", "0.2", "--output", str(output), "--if-busy", "wait")
        return CliRunner().invoke(cli.main, ["run", "--address", items, *fixed, *words]), output / "result.json"

    generator.find()
    yield measure


def test_a_service_is_described_by_options_and_in_a_line() -> None:
    assert Service().words() == []
    assert str(Service()) == "GET /, to be answered with 200"
    assert CREATES.words() == [
        "--method", "PUT", "--path", "/items/7?a=b", "--header", "Accept: text/plain", "--header", "X: y",
        "--data", '{"n": 1}', "--expect-status", "201", "--expect-text", '"id":7',
    ]  # fmt: skip
    assert str(CREATES) == (
        "PUT /items/7?a=b with 'Accept: text/plain', 'X: y', 8 bytes, to be answered with 201 and '\"id\":7' in the body"
    )
    assert str(Service(data="1", expect_body="")) == "POST / with 1 byte, to be answered with 200 and ''"


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (Service(), ["--path", "/", "--status", "200", "--any-body"]),
        (Service(expect_body=""), ["--path", "/", "--status", "200", "--body", ""]),
        (Service(data="x"), ["--path", "/", "--data", "x", "--status", "200", "--any-body"]),
        (replace(CREATES, header=()), [
            "--method", "PUT", "--path", "/items/7?a=b", "--data", '{"n": 1}', "--status", "201", "--contains", '"id":7',
        ]),
    ],
)  # fmt: skip
def test_the_load_generator_is_told_of_it(service: Service, words: list[str]) -> None:
    for name, begin in (("http/50/closed", ["http"]), ("churn/http/1", ["http", "--churn"])):
        plan = service.plan(workloads.BY_NAME[name])
        assert list(plan.load_words) == [*begin, *words]
        assert plan.title.startswith(f"{service}, on ")
        record = plan.record(workloads.SCALES["normal"])
        assert record.parameters["request"] == str(service)
        assert not record.of_http  # Nobody asks it what it parses.


def test_only_http_has_requests() -> None:
    plan = workloads.BY_NAME["echo/framed/1KB/100"]
    assert Service().plan(plan) == plan
    with pytest.raises(Refused, match="echo/framed/1KB/100 sends no requests of HTTP: leave out --method"):
        CREATES.plan(plan)


def test_a_service_is_measured_by_its_own_request(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "data.json").write_text('{"n": 1}')
    words = [*CREATES.words(), "--data", f"@{tmp_path / 'data.json'}"]
    found, file = run("http/50/closed", *words)
    assert found.exit_code == 0, found.output
    result = results.Result.read(file)
    (cell,) = result.cells
    # On a busy machine a sample may be void; none has got a wrong answer.
    assert "measured" in {sample.status for sample in cell.samples}
    assert not any(sample.errors for sample in cell.samples)
    assert cell.ceiling is None and not cell.probes
    assert [group.name for group in cell.analysis.groups] == ["all"]
    command = result.run.command
    assert command[command.index("--data") + 1] == '{"n": 1}'
    assert str(CREATES) in found.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "was answered with status 404"),
        (("--path", "/health", "--expect-status", "204"), "was answered with status 200 instead of 204"),
        (("--path", "/health", "--expect-text", "well"), "'fine' doesn't contain 'well'"),
        (("--path", "/health", "--expect-body", "good"), "'fine' came, and 'good' was expected"),
    ],
)
def test_a_wrong_answer_is_told_before_anything_is_measured(run, words, reason, items) -> None:  # type: ignore[no-untyped-def]
    found, file = run("http/50/closed", *words)
    assert found.exit_code == 2, found.output
    assert f"{items}: its first client: " in found.output
    assert reason in found.output
    assert "what a right answer is with --expect-status, --expect-body or --expect-text" in found.output
    assert not file.exists()


def test_what_describes_nothing_is_refused(tmp_path: Path) -> None:
    def refused(*words: str) -> str:
        found = CliRunner().invoke(cli.main, ["run", *words])
        assert found.exit_code == 2
        return " ".join(found.output.split())

    assert "--path describes a service: name it with --address" in refused("http", "--path", "/x")
    assert "nothing can't be read as text" in refused("http", "--address", "a:1", "--data", f"@{tmp_path}/nothing")
    assert "is not one of" in refused("http", "--address", "a:1", "--method", "HEAD")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js, which runs the guide's example")
def test_somebody_elses_server_is_guarded_as_the_guide_says(tmp_path: Path) -> None:
    repository, output = tmp_path / "items", tmp_path / "out"
    repository.mkdir()
    guide = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    server = guide.partition("```js\n")[2].partition("```")[0]

    def commit(text: str) -> None:
        (repository / "server.js").write_text(text)
        for words in (("add", "--all"), ("commit", "--quiet", "--message", "a change")):
            identity = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
            subprocess.run(["git", *identity, *words], cwd=repository, check=True)

    subprocess.run(["git", "init", "--quiet", "--initial-branch", "main"], cwd=repository, check=True)
    commit(server)
    search = (
        "JSON.parse(JSON.stringify([...items.values()])).find((item) => String(item.id) === request.url.split('/')[2])"
    )
    commit(server.replace("items.get(request.url.split('/')[2])", search))
    assert search in (repository / "server.js").read_text()
    words = (
        "guard", "--base", "HEAD^", "--build", "node --check server.js", "--start", "node server.js {port}",
        "http/50/closed", "--path", "/items/7", "--expect-text", '"id":7', "--rounds", "7", "--seconds", "0.2",
        "--repository", str(repository), "--output", str(output), "--if-busy", "wait",
    )  # fmt: skip
    found = CliRunner().invoke(cli.main, words)
    assert found.exit_code == 1, found.output
    assert "worse       http/50/closed: server@head is worse than server@base in server CPU per oper" in found.output
    result = results.Result.read(output / "result.json")
    assert [cell.parameters["request"] for cell in result.cells] == [
        "GET /items/7, to be answered with 200 and '\"id\":7' in the body"
    ]
