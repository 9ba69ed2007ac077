"""The command `ringlab audit`."""

import sys
from pathlib import Path

import click

from ringlab import audit, figures

EXIT_FINDINGS, EXIT_UNREAD = 1, 3


@click.command("audit", short_help="List contradictions in published benchmarks.")
@click.argument(
    "reports",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="REPORT...",
)
def audit_command(reports: tuple[Path, ...]) -> None:
    """List contradictions between a published benchmark's own figures, with the arithmetic. Nothing is measured.

    A REPORT is any text: Markdown, a web page, a terminal's copy. Its tables are read, and what wrk, wrk2, tcpkali, ab, hey,
    oha and k6 printed; its sentences aren't. Several reports are also compared with each other.

    \b
    A contradiction: figures that can't all be true.
    A weakness: a conclusion that the figures are too weak to support.
    Exit status: 0 all figures were read, and there are no findings; 1 findings;
    2 a file can't be read; 3 no findings, but no figures or not all were read.
    Example:
      ringlab audit docs/benchmark.md wrk-50.txt wrk-500.txt
    """
    done = audit.audit(audit.read(reports))
    for each in done.findings:
        click.echo(f"{each.report}:{each.line}: {each.severity} ({each.rule}): {each.what}")
        click.echo(f"    arithmetic: {each.arithmetic}")
        click.echo(f"    meaning: {each.meaning}\n")
    complete = True
    for report in dict.fromkeys(map(str, reports)):
        count, unread = done.figures(report), done.unread[report]
        found = [each for each in done.findings if each.report == report]
        hard = sum(each.severity == "contradiction" for each in found)
        said = f"{figures.counted(hard, 'contradiction')}, {figures.counted(len(found) - hard, 'other finding')}"
        said = said if count else "it is silent about this report"
        click.echo(f"{report}: {figures.counted(count, 'figure')} understood: {said}")
        if unread:
            click.echo(f"  not understood: some figures of the tables at line {', '.join(map(str, unread))}")
        if count and done.missing[report]:
            click.echo(f"  not in it: {'; '.join(done.missing[report])}")
        complete = complete and count > 0 and not unread
    sys.exit(EXIT_FINDINGS if done.findings else 0 if complete else EXIT_UNREAD)
