"""The command `ringlab audit`."""

import json
import sys
from pathlib import Path

import click

from ringlab import Refused, audit, figures

EXIT_FINDINGS = 1


@click.command("audit", short_help="List contradictions in published benchmarks.")
@click.argument(
    "reports",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="REPORT...",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def audit_command(reports: tuple[Path, ...], as_json: bool) -> None:
    """Read published benchmarks, and list contradictions between their own figures, with the arithmetic. Nothing is measured.

    A REPORT is Markdown (*.md), with tables and the output of wrk, wrk2 or tcpkali in code blocks, or such output in a file
    of its own. Several are also compared with each other.

    \b
    A contradiction: two figures that can't both be true.
    A weakness: figures that don't support what is said about them.
    Exit status: 0 no findings, 1 findings, 2 the report can't be read, or no
    figures in it are understood.
    Example:
      ringlab audit docs/benchmark.md wrk-50.txt wrk-500.txt
    """
    found, records = audit.audit(audit.read(reports))
    if not records:
        raise Refused(
            f"{', '.join(map(str, reports))}: no figures that it understands; it reads tables in Markdown (*.md) whose headings name"
            " what they hold (req/s, p99, connections, ...), and the output of wrk and tcpkali"
        )
    if as_json:
        click.echo(json.dumps({"read": len(records), "findings": [each.to_json() for each in found]}, indent=1))
    else:
        for each in found:
            click.echo(f"{each.report}:{each.line}: {each.severity} ({each.rule}): {each.what}")
            click.echo(f"    arithmetic: {each.arithmetic}")
            click.echo(f"    meaning: {each.meaning}\n")
        contradictions = sum(each.severity == "contradiction" for each in found)
        said = (
            f"{figures.counted(contradictions, 'contradiction')} and {len(found) - contradictions} other findings"
            if found
            else "nothing contradicts itself"
        )
        click.echo(f"{figures.counted(len(records), 'set')} of figures read: {said}")
    sys.exit(EXIT_FINDINGS if found else 0)
