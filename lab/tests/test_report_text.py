"""The reports in Markdown and for a terminal say what the page says."""

import io
import shlex
from collections.abc import Callable

import pytest
from rich.console import Console

import recorded
import report_data
from ringlab import analysis, report, results
from ringlab.report import html, markdown, terminal

# Making the result that is reported takes a minute where a machine has much to do.
pytestmark = pytest.mark.timeout(300)


def as_markdown(result: results.Result) -> str:
    return markdown.render(result).replace("&lt;", "<")


def as_terminal(result: results.Result) -> str:
    output = io.StringIO()
    terminal.print_result(Console(file=output, width=250, soft_wrap=True), result)
    return output.getvalue()


def as_page(result: results.Result) -> str:
    return html.render("a run", result)


@pytest.mark.parametrize("render", [as_markdown, as_terminal])
def test_everything_that_a_reader_must_know_is_said(render: object) -> None:
    assert callable(render)
    result = report_data.make_result()
    text = render(result)
    for cell in result.cells:
        for group in cell.analysis.groups:
            assert group.verdict.sentence in text
            assert group.noise_text[1:] in text
        for note in cell.analysis.notes:
            assert note in text
    for expected in (
        "servers that parse requests",
        "servers whose answer is fixed",
        "30,000 requests/s are offered, 50% of what asyncio-uvicorn did in the closed loop",
        "the limit of descriptors is 1,024 and 2,064 are needed: ulimit -n 4096",
        "echo/stream/500: the run ended before it",
        "there is no erl on the PATH",
        "apt-get install erlang-base erlang-ranch",
        "a frame came back changed: connection 7, message 12",
        "the load generator was near its own limit",
        report_data.ODD_NAME,
        "24 GiB",
        "2.04",
    ):
        assert expected in text, expected


@pytest.mark.parametrize("width", [20, 60, 80, 100, 160])
def test_a_narrow_terminal_shows_figures_ratios_and_verdicts_whole(width: int) -> None:
    result, output = results.Result.read(recorded.FILE), io.StringIO()
    console = Console(file=output, width=width, soft_wrap=True)
    for cell in result.cells:
        terminal.print_cell(console, cell)
    text = output.getvalue()
    assert "\u2026" not in text
    words = " ".join(text.split())
    for cell in result.cells:
        for group in cell.analysis.groups:
            for arm in group.arms:
                summary = report.summary_of(cell, arm, cell.primary.key)
                assert summary is not None
                figure, (ratio, verdict) = (
                    report.show_figure(summary.median, cell.primary),
                    report.comparing(group, arm, cell.primary),
                )
                assert f"{arm} {figure} {ratio} {verdict}" in words
    last = report.heading(result.cells[0].metrics[-1]).split()[0]
    assert width < 160 or last in words


@pytest.mark.parametrize("render", [as_markdown, as_terminal, as_page])
def test_a_cell_in_which_no_sample_counts_is_told_with_the_reasons(render: Callable[[results.Result], str]) -> None:
    result = report_data.make_result()
    cell = result.cells[0]
    for sample in cell.samples:
        sample.status, sample.reasons = "void", ["its bytes were others"]
    cell.analysis = analysis.analyse(cell, result.arms)
    text = render(result)
    assert "nothing was measured: no sample counts" in text
    assert "void: go in round 1, 2, 3, " in text
    assert text.count("its bytes were others") >= len(cell.arms)


def test_markdown_shows_what_looks_like_html_and_the_command_as_it_is() -> None:
    result = report_data.make_result()
    result.run.command += ["--targets", "a<b"]
    text = markdown.render(result)
    assert f"```\n{shlex.join(result.run.command)}\n```" in text
    assert text.count("<") == 1
    assert "with a &lt;name> that is" in text


def test_rows_of_a_table_have_as_many_fields_as_its_heading() -> None:
    result = report_data.make_result()
    result.arms[0].skipped = "a | b"
    width = 0
    for line in markdown.render(result).splitlines():
        fields = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        assert fields in (width, 0) or not width, line
        width = fields
