"""Services: HTTP servers that anybody has written, what they are asked, and what a right answer is."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import click

from ringlab import Refused, figures
from ringlab.workloads import CellPlan

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True)
class Service:
    """The request that is measured, and its right answer."""

    method: str | None = None
    """GET, or POST with data."""
    path: str = "/"
    header: tuple[str, ...] = ()
    data: str = ""
    expect_status: int = 200
    expect_body: str | None = None
    """The whole body. None for any."""
    expect_text: str = ""
    """A part of the body."""

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """Take its options out of those of a command."""
        service = cls(**{each.name: options.pop(each.name) for each in fields(cls)})
        if service.expect_text and service.expect_body is not None:
            raise Refused("--expect-body is the whole body, and --expect-text a part of it: use one of the two")
        return service

    def words(self) -> list[str]:
        """Return the options of the command line that describe it."""
        default, words = type(self)(), []
        for each in fields(self):
            value = getattr(self, each.name)
            if value != getattr(default, each.name):
                option = f"--{each.name.replace('_', '-')}"
                words += [word for one in (value if each.name == "header" else [value]) for word in (option, str(one))]
        return words

    def load_words(self) -> list[str]:
        """Return the load generator's words for it."""
        words = ["--method", self.method] if self.method else []
        words += ["--path", self.path, *(word for each in self.header for word in ("--header", each))]
        words += ["--data", self.data] if self.data else []
        words += ["--status", str(self.expect_status)]
        if self.expect_text:
            return [*words, "--contains", self.expect_text]
        return [*words, "--any-body"] if self.expect_body is None else [*words, "--body", self.expect_body]

    def __str__(self) -> str:
        """Describe it in a line."""
        method = self.method or ("POST" if self.data else "GET")
        sent = [shlex.quote(each) for each in self.header]
        sent += [figures.counted(len(self.data.encode()), "byte")] if self.data else []
        right = str(self.expect_status)
        right += f" and {self.expect_text!r} in the body" if self.expect_text else ""
        right += f" and {self.expect_body!r}" if self.expect_body is not None else ""
        return f"{method} {self.path}{' with ' if sent else ''}{', '.join(sent)}, to be answered with {right}"

    def plan(self, plan: CellPlan) -> CellPlan:
        """Return a cell of HTTP with this request instead of its own; a cell of another kind as it is, if nothing was described."""
        if plan.kind != "http":
            if self.words():
                raise Refused(
                    f"{plan.name} sends no requests of HTTP: leave out {self.words()[0]}, or measure http, churn/http or sweep/http"
                )
            return plan
        title = f"{self}, on {figures.counted(plan.connections, 'connection')}: the load of {plan.name}"
        load_words = (*(plan.load_words or ("http",)), *self.load_words())
        return replace(plan, title=title, load_words=load_words, request=str(self))


def read_data(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """Return the text, or that of the file after an @."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{text[1:]} can't be read as text: {error}") from None


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a service."""
    for option in reversed(
        (
            click.option("--method", type=click.Choice(METHODS), help="HTTP: the method (GET; POST with --data)."),
            click.option("--path", default="/", show_default=True, help="HTTP: the path to request."),
            click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="HTTP: a header to send. Repeatable."),
            click.option(
                "--data", default="", callback=read_data, metavar="TEXT|@FILE", help="HTTP: the body to send, or a file with it."
            ),
            click.option(
                "--expect-status", type=click.IntRange(200, 599), default=200, show_default=True, help="HTTP: the status of a right answer."
            ),
            click.option("--expect-body", metavar="TEXT", help="HTTP: the body of a right answer (default: any)."),
            click.option("--expect-text", default="", metavar="TEXT", help="HTTP: a text within the body of a right answer."),
        )
    ):  # fmt: skip
        function = option(function)
    return function
