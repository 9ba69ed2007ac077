"""`ringloop serve --metrics`: the page, read by Prometheus' own parser, and the totals over all workers."""

import logging
import os
import signal

import pytest

from ringloop import _core
from ringloop.http import Config, Server
from ringloop.http.logging import AccessLog
from serve_process import begin, fails, serving
from test_workers import PATIENT, children, wait_until

parser = pytest.importorskip("prometheus_client.parser")

# The server is a process of its own, and above the loop: few tests need both backends.
pytestmark = [pytest.mark.ringloop_only, pytest.mark.any_backend]
both_backends = pytest.mark.any_backend(matters=True)

METRICS = ("applications:app", "--metrics", "/metrics")


def read(text):
    """Return the values of a page by name and labels; every family has a help text and a type."""
    values = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in values
            values[key] = sample.value
    return values


def scrape(program, path="/metrics"):
    status, headers, body = program.get_again(path)
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    return read(body.decode())


def requests(values, status="200"):
    return values.get(("ringloop_http_requests_total", ("method", "GET"), ("status", status)), 0)


@pytest.mark.one_thread
@both_backends
def test_a_page(arm):
    with serving(arm, *METRICS) as program:
        for _ in range(3):
            assert program.get("/")[0] == 200
        assert program.get("/missing%20path")[0] == 200
        with begin(program, "/stream"):
            values = scrape(program)
        worker = ("worker", str(program.process.pid))
        assert requests(values) == 4
        assert values["ringloop_http_requests_active",] == 2  # The stream, and this one.
        assert values["ringloop_http_connections",] >= 2
        assert values["ringloop_http_connections_opened_total",] >= 6
        assert values["ringloop_http_request_duration_seconds_count",] == 4
        assert values["ringloop_http_request_duration_seconds_bucket", ("le", "+Inf")] == 4
        assert values["ringloop_http_request_duration_seconds_sum",] > 0
        assert values["ringloop_http_received_bytes_total",] > 0
        assert values["ringloop_http_sent_bytes_total",] > 0
        assert values["ringloop_workers",] == 1
        assert values["ringloop_loop_info", ("backend", arm), worker] == 1
        assert values["ringloop_loop_turns_total", worker] > 0
        assert values["ringloop_loop_connections", worker] >= 2
        assert values["process_resident_memory_bytes", worker] > 1 << 20
        assert values["process_open_fds", worker] > 3
        again = scrape(program)
        assert requests(again) >= 5
        assert again["process_cpu_seconds_total", worker] >= values["process_cpu_seconds_total", worker]


def test_what_is_not_logged(arm):
    """Scrapes are not logged, nor do they reach the application; all other requests do both."""
    with serving(arm, *METRICS) as program:
        scrape(program)
        scrape(program, "/metrics?x=1")
        assert program.get("/metrics/")[2] == b"hello"
        program.wait_for(r'"GET /metrics/ HTTP/1.1" 200')
        assert "GET /metrics " not in program.output
        assert "/metrics?" not in program.output


def test_the_access_log_stays_native(loop, monkeypatch, caplog):
    """`Server` gives the service uvicorn's logger as it does without metrics: lines are formatted natively."""
    given = []
    make = _core.HttpService

    def note(*arguments, **options):
        given.append(options)
        return make(*arguments, **options)

    monkeypatch.setattr(_core, "HttpService", note)

    async def test():
        config = Config(
            "applications:app", port=0, log_config=None, lifespan="off", root_path="/api", metrics="/metrics"
        )
        config.loaded_app, config.loaded = "unused", True
        server = Server(config)
        server.should_exit = True
        await server.serve()

    caplog.set_level(logging.INFO, "uvicorn.access")
    loop.run_until_complete(test())
    assert type(given[0]["access_log"]) is AccessLog
    assert given[0]["pages"].paths == given[0]["pages"].unlogged == ["/metrics"]


def test_a_server_without_an_access_log(arm):
    with serving(arm, *METRICS, "--no-access-log") as program:
        scrape(program)


def test_methods_and_formats(arm):
    with serving(arm, *METRICS) as program:
        client = program.client()
        try:
            client.request("HEAD", "/metrics")
            response = client.getresponse()
            assert (response.status, response.read()) == (200, b"")
            client.request("POST", "/metrics", body=b"x")
            response = client.getresponse()
            assert (response.status, response.read()) == (405, b"Method Not Allowed")
            assert response.headers["allow"] == "GET, HEAD"
            client.request("GET", "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
            response = client.getresponse()
            assert response.headers["content-type"].startswith("application/openmetrics-text")
            assert response.read().endswith(b"# EOF\n")
        finally:
            client.close()


def test_root_path(arm):
    with serving(arm, *METRICS, "--root-path", "/api") as program:
        assert requests(scrape(program)) == 0
        assert "/api/metrics" not in program.output


def test_without_the_option(arm):
    with serving(arm, "applications:app") as program:
        assert program.get("/metrics")[2] == b"hello"


def test_totals_of_workers(arm):
    """They include workers that are gone, whichever worker answers."""
    with serving(arm, *METRICS, "--workers", "2", *PATIENT) as program:
        program.wait_for("startup", 2)
        pids, served = set(), 0
        while len(pids) < 2:
            pids.add(int(program.get("/pid")[2]))
            served += 1
        # What the other worker has counted comes within a second.
        wait_until(lambda: scrape(program)["ringloop_workers",] == 2, program)
        wait_until(lambda: requests(scrape(program)) >= served, program)
        values = scrape(program)
        workers = {dict(labels)["worker"] for name, *labels in values if name == "ringloop_loop_turns_total"}
        assert workers == {str(pid) for pid in pids}
        before = requests(values)
        program.send(signal.SIGHUP)
        program.wait_for("startup", 4)
        wait_until(lambda: not pids & children(program.process.pid), program)
        after = scrape(program)
        # No request is forgotten, and the durations are those of the same requests.
        assert requests(after) >= before
        assert after["ringloop_http_request_duration_seconds_count",] >= before
        wait_until(lambda: scrape(program)["ringloop_workers",] == 2, program)
        workers = {dict(labels)["worker"] for name, *labels in scrape(program) if name == "ringloop_loop_turns_total"}
        assert not workers & {str(pid) for pid in pids}


def test_a_worker_that_is_killed(arm):
    """A figure that was shown once never shrinks."""
    with serving(arm, *METRICS, "--workers", "2", *PATIENT) as program:
        program.wait_for("startup", 2)
        for _ in range(20):
            program.get("/pid")
        wait_until(lambda: requests(scrape(program)) >= 20, program)
        values = scrape(program)
        os.kill(int(program.get("/pid")[2]), signal.SIGKILL)
        program.wait_for("startup", 3)
        assert requests(scrape(program)) >= requests(values)


def test_paths_that_are_none(arm):
    with pytest.raises(ValueError, match="must begin with a slash: 'metrics'"):
        Config("applications:app", metrics="metrics")
    status, output = fails(arm, "applications:app", "--metrics", "metrics")
    assert status == 2
    assert "Invalid value for '--metrics': the path must begin with a slash" in output


def test_without_prometheus_client(arm, tmp_path):
    (tmp_path / "prometheus_client.py").write_text("raise ModuleNotFoundError(name='prometheus_client')")
    status, output = fails(arm, *METRICS, env={"PYTHONPATH": str(tmp_path)})
    assert status == 3
    assert "--metrics needs prometheus-client: pip install prometheus-client" in output
