"""Charts of one run of ringlab: the directive `run-charts`, and ringlab's own report of that run as the page run.html.

The setting `run_result` is the result file. The charts are ringlab's, inline SVG, in colours of the theme (static/site.css).
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.parsers.rst import Directive
from markupsafe import Markup
from ringlab import report
from ringlab.report import html
from ringlab.results import Result

if TYPE_CHECKING:
    from sphinx.application import Sphinx

REPORT = "run.html"
# The settings of a run that readers of the page need. The rest is in the report.
SHOWN = ("begun", "machine", "kernel", "load", "rounds")


class RunCharts(Directive):
    """A run, and a chart for each workload."""

    def run(self) -> list[nodes.Node]:
        config = self.state.document.settings.env.config
        result = Result.read(pathlib.Path(config.run_result))
        rows = Markup().join(
            Markup("<tr><th>{}</th><td>{}</td></tr>").format(name, text)
            for name, text in report.settings(result)
            if name in SHOWN
        )
        link = Markup('<p><a class="reference" href="{}">All figures, verdicts and rounds of this run</a></p>')
        parts = [Markup('<div class="table-wrapper"><table class="docutils">{}</table></div>').format(rows)]
        parts.append(link.format(REPORT))
        made: list[nodes.Node] = [nodes.raw("", "".join(parts), format="html")]
        source = _source(result)
        for cell in result.cells:
            for group in cell.analysis.groups:
                made += _section(cell, group, source)
        return made


def _source(result: Result) -> str:
    """Return which run a chart is from."""
    settings = dict(report.settings(result))
    return f"ringlab's run begun {settings['begun']}, on {settings['machine']}"


def _section(cell: html.Cell, group: html.Group, source: str) -> list[nodes.Node]:
    chart = html.median_chart(cell, group)
    if not chart:
        return []
    title = report.group_title(cell, group)
    heading = Markup("<h3><code>{}</code>{}</h3>").format(cell.name, f", {title}" if title else "")
    shown = "The points are the {}, medians of the rounds; the lines are the range of the rounds."
    text = Markup("<p>{} " + shown + "</p><p><strong>{}</strong></p>").format(
        report.sentence(cell.title), cell.primary.title, report.sentence(group.verdict.sentence)
    )
    caption = Markup('<p class="source">Source: {}</p>').format(source)
    return [nodes.raw("", f'<section class="run">{heading}{text}{chart}{caption}</section>', format="html")]


def _write_report(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        result = pathlib.Path(app.config.run_result)
        (pathlib.Path(app.outdir) / REPORT).write_text(html.render(result.stem, Result.read(result)))


def setup(app: Sphinx) -> None:
    app.add_config_value("run_result", "", "env", [str])
    app.add_directive("run-charts", RunCharts)
    app.connect("build-finished", _write_report)
