"""How far the lab is: what it builds, how far the race is and how long it will still take, on the console."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from ringlab import report, results
from ringlab.report import terminal

TELL_S = 10.0
"""Where the output is no terminal, progress is told no more often."""
LEFT_S_MIN = 1.0
"""The least that is said to be left of a race that isn't over."""


@contextlib.contextmanager
def working(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Show what is done before anything is measured, and give a function that is told how far that is.

    A terminal has a line that changes. Elsewhere it is a line on the standard error now and then.
    """
    if console.is_terminal:
        with console.status(escape(text)) as status:
            yield lambda text: status.update(escape(text))
        return
    told = -math.inf

    def tell(text: str) -> None:
        nonlocal told
        if time.monotonic() - told >= TELL_S:
            told = time.monotonic()
            try:
                print(text, file=sys.stderr, flush=True)
            except OSError:
                terminal.let_go_of(sys.stderr)

    yield tell


class ConsoleProgress:
    """Tells how far the race is and how long it will still take, and prints each cell when it is done."""

    def __init__(self, console: Console, expected_s: float, limit_s: float = math.inf, least: float = 1.0) -> None:
        """Take what the whole race is expected to take, at most if there is a limit, and the share of it that is measured anyway."""
        self.console = console
        self.limit_s = limit_s
        self.least = least
        self.expected_s = max(expected_s, 0.001)
        self.done_s = 0.0
        self.begun = time.monotonic()
        self.bar = Progress(
            BarColumn(30),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=1.0, left="")

    def left_s(self) -> float:
        """Return how long it will still take, from how long what is done took.

        A race with a limit ends its cells early, but not before each has had its fewest rounds.
        """
        spent_s = time.monotonic() - self.begun
        left_s = max(0.0, self.expected_s - self.done_s)
        if self.done_s > 0:
            left_s *= spent_s / self.done_s
        return max(LEFT_S_MIN, min(left_s, max(self.limit_s - spent_s, self.least * left_s)))

    def left(self) -> str:
        """Say how long it will still take."""
        return f"{report.minutes(self.left_s())} left"

    def show(self, **fields: str) -> None:
        """Draw the bar, whose share is that of the time, so that both say the same."""
        spent_s, left_s = time.monotonic() - self.begun, self.left_s()
        share = max(spent_s / (spent_s + left_s), self.bar.tasks[self.task].completed)
        self.bar.update(self.task, completed=share, left=f"{report.minutes(left_s)} left", **fields)  # type: ignore[arg-type]

    def step(self, text: str) -> None:
        """Show what is being done now."""
        self.show(description=text)

    def advance(self, expected_s: float) -> None:
        """Note that a part is over."""
        self.done_s += expected_s
        self.show()

    def warn(self, text: str) -> None:
        """Print a problem that can be fixed meanwhile."""
        with contextlib.suppress(OSError):  # The race continues, even if the output goes to a file on a full disk.
            self.console.print(f"[red]{escape(text)}[/red]", highlight=False)

    def cell_done(self, cell: results.Cell) -> None:
        """Print a cell."""
        with contextlib.suppress(OSError):
            terminal.print_cell(self.console, cell)
            if not self.console.is_terminal and self.done_s < self.expected_s:
                self.console.print(f"[dim]{self.left()}[/dim]", highlight=False)
