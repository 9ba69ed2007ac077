"""The page of a result: everything is on it, nothing is fetched, and a real browser shows it as it is meant."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

import report_data
from ringlab import analysis, figures, report, subjects
from ringlab.report import charts, html

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
BROWSER_TRIES = 3
# Making the result that is shown takes a minute where a machine has much to do.
pytestmark = pytest.mark.timeout(300)
WITHOUT_END_TAG = {"meta", "br", "hr", "img", "input", "link"}

# Measures the page from within, and leaves what it found where --dump-dom shows it.
MEASURE = """
<script>
addEventListener("load", () => {
  const problems = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) problems.push(`the page is ${wide} wide in a window of ${innerWidth}`);
  for (const details of document.querySelectorAll("details")) details.open = true;
  let texts = 0;
  for (const chart of document.querySelectorAll("svg.chart")) {
    if (!chart.getClientRects().length) continue; // For screens of another width.
    const frame = chart.getBoundingClientRect();
    if (frame.width < 200 || frame.height < 50) problems.push("a chart has no room: " + chart.ariaLabel);
    const boxes = [...chart.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    for (const [text, box] of boxes) {
      texts += 1;
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        problems.push(`"${text}" leaves the chart ${chart.ariaLabel}`);
    }
    for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
      const [a, b] = [boxes[i][1], boxes[j][1]];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
        problems.push(`"${boxes[i][0]}" lies over "${boxes[j][0]}" in ${chart.ariaLabel}`);
    }
  }
  for (const use of document.querySelectorAll("use")) {
    if (!document.getElementById(use.getAttribute("xlink:href").slice(1))) problems.push("a mark that is not defined");
  }
  for (const link of document.querySelectorAll("a")) {
    if (!document.getElementById(link.getAttribute("href").slice(1))) problems.push("dead link: " + link.href);
  }
  const requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  document.body.dataset.found = JSON.stringify({problems, texts, requests, ink: getComputedStyle(document.body).color});
});
</script>
"""


@pytest.fixture(scope="module")
def page() -> str:
    return html.render("a run", report_data.make_result())


def browse(page: str, folder: Path, width: int, *flags: str) -> dict[str, object]:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is here to show the page; install it with: apt-get install chromium")
    path = folder / "report.html"
    path.write_text(page.replace("</body>", MEASURE + "</body>"))
    command = [browser, *BROWSER_FLAGS, *flags, f"--window-size={width},1200", "--dump-dom", path.as_uri()]
    # A browser that falls over, as one does now and then, says nothing of the page.
    for number in range(BROWSER_TRIES):
        words = [*command, f"--user-data-dir={folder / f'profile-{number}'}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=140, check=False)
        if found := re.search(r'data-found="([^"]*)"', done.stdout):
            measured: dict[str, object] = json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
            return measured
    pytest.fail(f"the browser ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


@pytest.mark.parametrize("width", [1400, 500, 390])
def test_a_browser_shows_every_chart_within_its_frame_and_no_text_over_another(
    page: str, tmp_path: Path, width: int
) -> None:
    found = browse(page, tmp_path, width)
    assert found["problems"] == []
    assert found["requests"] == [], "the page fetches something"
    assert isinstance(found["texts"], int)
    assert found["texts"] > 300


def test_it_is_light_or_dark_as_the_reader_likes(page: str, tmp_path: Path) -> None:
    (tmp_path / "light").mkdir()
    (tmp_path / "dark").mkdir()
    light = browse(page, tmp_path / "light", 1000, "--blink-settings=preferredColorScheme=1")
    dark = browse(page, tmp_path / "dark", 1000, "--blink-settings=preferredColorScheme=0")
    assert light["ink"] != dark["ink"]
    assert dark["problems"] == []


class Balance(HTMLParser):
    """Fails where an element is not ended, or ended twice."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in WITHOUT_END_TAG:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        # Paragraphs and rows may be left open in HTML; ours are not.
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def test_its_elements_are_nested_as_they_should(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []


def test_it_needs_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(r"https?://|url\((?!#)|@import|<link|<img|<script| src=", page)


def test_it_says_everything_that_a_reader_must_know(page: str) -> None:
    result = report_data.make_result()
    for text in (
        "ringlab run echo http --quick --seed 7",
        "go, round 3: void: a frame came back changed: connection 7, message 12",
        "node, round 5: failed: it ended with code 1",
        "the limit of descriptors is 1,024 and 2,064 are needed: ulimit -n 4096",
        "there is no erl on the PATH",
        "apt-get install erlang-base erlang-ranch",
        "backlog 128 (violated, declared 1024)",
        "the machine is busy",
        "client-limited: c-io_uring: the load generator was near its own limit",
        "412,000 per second",
        "2.04",
        "30,000 requests/s are offered, 50% of what asyncio-uvicorn did in the closed loop.",
        '<h4 class="group">Servers that parse requests</h4>',
        "memory at rest, MB",
        "echo/stream/500: the run ended before it",
    ):
        assert text in page, text
    groups = [group for cell in result.cells for group in cell.analysis.groups]
    assert len(groups) == 2 + 5 * 2
    for group in groups:
        assert page.count(str(escape(group.verdict.sentence))) == 1, "each verdict is said once"
        assert group.noise_text[1:] in page
    assert page.count("Ratios of") == page.count("Rounds of") == len(groups)


def test_every_picture_and_table_of_a_group_has_one_order(page: str) -> None:
    result = report_data.make_result()
    (group,) = result.cells[0].analysis.groups
    ranking = [escape(name) for name in group.ranking(result.cells[0].primary)]
    shown = {escape(charts.shorten(name)): escape(name) for name in group.ranking(result.cells[0].primary)}
    article = page[page.index('id="cell-echo-1KB-50"') :]
    article = article[: article.index("</article>")]
    orders = [
        [name for name in re.findall(r"<text[^>]*>([^<]*)</text>", chart) if name in shown]
        for chart in re.findall(r'<svg [^>]*aria-label="(?:Ratios|server|Rounds).*?</svg>', article, re.DOTALL)
    ]
    orders = [[shown[name] for name in order] for order in orders]
    orders.append(re.findall(r'<tr><td class="arm">(.*?)</td>', article)[: len(ranking)])
    assert orders == [ranking] * 4


def test_texts_from_elsewhere_cannot_become_elements(page: str) -> None:
    assert "&lt;name&gt;" in page
    assert "<name>" not in page


def test_an_interrupted_run_says_so_and_one_without_cells_is_a_page_too() -> None:
    result = report_data.make_result()
    result.run.interrupted, result.run.complete = True, False
    assert "interrupted: this report covers what was measured until then" in html.render("a run", result)
    result.run.interrupted, result.cells, result.arms = False, [], []
    assert "not complete" in html.render("a run", result)


def test_no_two_elements_have_one_name(page: str) -> None:
    anchors = re.findall(r' id="([^"]*)"', page)
    assert len(anchors) == len(set(anchors))


def test_the_worst_arm_is_on_a_logarithmic_axis_however_far_out_it_is() -> None:
    rows = [
        charts.Row("near", 1.1, 1.05, 1.15, "1.1", verdict="worse"),
        charts.Row("far", 40.0, 1e-9, 1e9, "40", verdict="worse"),
    ]
    drawn = charts.intervals(rows, "ratio", "ratios", noise=0.02)
    assert "ratio; the axis is logarithmic<" in drawn
    places = [float(each) for each in re.findall(r'<use [^>]*x="([0-9.]+)"[^>]*fill: var\(--c1\)', drawn)]
    assert len(places) == 2
    near, far = places
    assert near < far < charts.WIDTH
    assert far - near > 0.5 * charts.WIDTH


def test_points_and_not_bars_stand_on_logarithmic_axes() -> None:
    rows = [charts.Row("near", 5.0, 4.9, 5.1, "5"), charts.Row("far", 200.0, 190.0, 210.0, "200")]
    drawn = charts.intervals(rows, "us", "medians")
    assert "us; the axis is logarithmic<" in drawn
    assert len(re.findall("<use [^>]*fill: var", drawn)) == 2
    close = charts.intervals([rows[0], charts.Row("b", 9.0, 8.0, 10.0, "9")], "us", "medians")
    assert "logarithmic" not in close
    assert ">0</text>" in close


def test_a_row_says_what_it_is_and_has_the_colour_of_its_verdict() -> None:
    rows = [
        charts.Row(kind, 1.2, 1.1, 1.3, "", f"{kind}: <1.2>", kind)
        for kind in ("better", "worse", "tie", "cannot tell")
    ]
    drawn = charts.intervals(rows, "ratio", "ratios", noise=0.02)
    for row in rows:
        assert drawn.count(f"<title>{escape(row.title)}</title>") == 2, "the line and the point"
    for variable in ("c1", "c2", "c4", "soft", "band"):
        assert f"var(--{variable})" in drawn
    assert "#" not in re.sub(r"(xlink:href=\"|url\()#", "", drawn), "all colours are the page's"


def test_rounds_are_in_percent_of_the_arms_median_and_those_that_do_not_count_are_left_out() -> None:
    cell = report_data.make_result().cells[0]
    (group,) = cell.analysis.groups
    drawn = html.round_chart(cell, group)
    titles = re.findall(r"<title>go: round (\d+): [0-9.]+ us</title>", drawn)
    assert titles == ["1", "2", "4", "5", "6", "7", "8", "9"]
    assert {"round", "% of the arm's median", "100"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", drawn))
    line = charts.in_percent("a", [(1, 2.0), (2, 4.0), (3, 6.0)], ["", "", ""])
    assert line.points == [(1, 50.0), (2, 100.0), (3, 150.0)]
    assert charts.in_percent("a", [(1, 0.0)], [""]).points == []


def test_lines_have_axes_with_titles_and_their_names() -> None:
    found = [charts.Line(name, [(1e3, 1e5), (1e4, 3e5 * (index + 1))]) for index, name in enumerate("ab")]
    drawn = charts.lines(found, ("offered", "p99"), "curves", logarithmic=True, steps=[(2e3, "a step")])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    for text in ("offered", "p99", "1,000", "10,000", "100,000", "a", "b"):
        assert text in texts
    assert "<title>a step</title>" in drawn


def test_marks_of_times_have_units_as_the_figures_at_the_bars_do() -> None:
    result = report_data.make_result()
    cell = result.cells[0]
    cell.metrics = [subjects.OPERATION]
    arm = cell.samples[0].arm
    for number, sample in enumerate(cell.samples):
        sample.figures = {subjects.OPERATION.key: 20_000.0 + number}
    cell.analysis = analysis.analyse(cell, result.arms, arm)
    (group,) = cell.analysis.groups
    drawn = html.median_chart(cell, group)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert {"0 ns", "5 us", "10 us", "15 us", "20 us", "time per operation"} <= set(texts)


def test_charts_of_nothing_are_nothing() -> None:
    assert charts.intervals([], "", "") == ""
    assert charts.lines([charts.Line("a", [])], ("", ""), "") == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234567, "1,230,000"), (999.6, "1,000"), (12.34, "12.3"), (0.012345, "0.0123"), (4.0, "4.00")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert figures.significant(value) == text


@pytest.mark.parametrize(
    ("value_ns", "text"), [(850, "850 ns"), (12_340, "12.3 us"), (4.2e6, "4.20 ms"), (3e9, "3.00 s"), (0.4, "0.400 ns")]
)
def test_times_have_the_unit_that_suits_them(value_ns: float, text: str) -> None:
    assert figures.latency(value_ns) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.11, 1.05, 1.18, "11% more (5 to 18%)"),
        (0.63, 0.58, 0.70, "37% less (30 to 42%)"),
        (1.01, 0.97, 1.06, "1% more (3% less to 6% more)"),
        (0.998, 0.982, 1.014, "0.2% less (1.8% less to 1.4% more)"),
        (1.07, 1.002, 1.14, "7.0% more (0.2 to 14.0%)"),
        (1.203, 1.194, 1.213, "20.3% more (19.4 to 21.3%)"),
        (1.2, 0.9, 2.5, "20% more (10% less to 2.5 times)"),
        (8.7, 8.2, 9.3, "8.7 times (8.2 to 9.3)"),
        (2.992, 2.951, 3.034, "2.99 times (2.95 to 3.03)"),
        (2.84, 0.696, 11.587, "2.8 times (0.70 to 12)"),
        (40, 1e-9, 269, "40 times (0 to 270)"),
    ],
)
def test_a_ratio_is_written_in_one_way(value: float, low: float, high: float, text: str) -> None:
    assert figures.compared(value, (low, high)) == text
    told, _, _ = text.partition(" (")
    assert figures.compared(value, (low, high), whole=False) == told


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "the same"), (1.05, "5.0% more"), (0.6, "40% less"), (2, "2.0 times")]
)
def test_a_ratio_without_an_interval_has_two_digits(value: float, text: str) -> None:
    assert figures.compared(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.034, "3.4%"), (0.12, "12%"), (1.5, "150%"), (0.0004, "0.040%")])
def test_shares_have_two_digits(share: float, text: str) -> None:
    assert figures.percent(share) == text


def test_what_to_do_shows_commands_alone_as_code_and_nothing_else_as_elements() -> None:
    assert html.code("stop them (`top -b` shows <them>)") == "stop them (<code>top -b</code> shows &lt;them&gt;)"


def test_words_are_explained_where_they_are_used() -> None:
    result = report_data.make_result()
    assert [word for word, _ in report.words(result)] == ["cell", "arm", "round", "group", "void", "control"]
    page = html.render("a run", result)
    for word, meaning in report.words(result):
        place = page.index(f"<b>{word}</b>: {escape(meaning)}")
        assert place < page.index('<table class="verdicts">')
    result.cells = [cell for cell in result.cells if cell.workload == "echo"][:1]
    result.cells[0].samples = [sample for sample in result.cells[0].samples if sample.status == "measured"]
    assert [word for word, _ in report.words(result)] == ["cell", "arm", "round", "control"]
